"""Export of a model to one file that runs without airscene."""
