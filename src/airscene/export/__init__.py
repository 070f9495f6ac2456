"""A model as one file that runs without airscene."""
