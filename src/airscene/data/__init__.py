"""Scenes with several objects, and their ground truth (for evaluation only).

A data set is a function from a `Request` to `Scenes`. To add one, add a module here and an entry in
`datasets.DATASETS`.
"""

from airscene.data.datasets import DATASETS, Dataset, make_scenes
from airscene.data.scenes import Scenes

__all__ = ["DATASETS", "Dataset", "Scenes", "make_scenes"]
