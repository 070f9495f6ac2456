"""Large collections in parts: inference on images, or rendering of scenes.

A `Job` defines the work. Its plan divides the work into fixed parts and is written into the results
folder, together with the identity of the job. Each part becomes one Parquet file, written whole or
not at all. After any crash, the same command does the missing parts, and each image appears in the
results exactly once.

storage.py   local and remote files: paths, and URIs that pyarrow supports
sources.py   collections of images: folders, tar files, Parquet files, stacks
manifest.py  the results folder: plan, identity of the job, finished parts
jobs.py      the base class of jobs
inference.py, rendering.py  the two jobs
engines.py   what runs a job: this process, or Ray
"""
