"""Work on large collections, in parts: images to be read, or scenes to be rendered.

A `Job` says what is done. Its plan divides the work into parts, once and for all, and is written
into the folder of the results, with what identifies the job. Each part becomes one Parquet file,
which is there as a whole or not at all. So whatever dies, the same command goes on with the parts
that are missing, and each image is there exactly once.

storage.py   files here and elsewhere: paths, and URIs that pyarrow knows
sources.py   collections of images: folders, tar files, Parquet files, stacks
manifest.py  the folder of the results: plan, identity, what is done
jobs.py      what a job is
inference.py, rendering.py  the two jobs
engines.py   what carries a job out: this process, or Ray
"""
