"""Scenes with several objects, and their ground truth (for evaluation only).

A data set is a function of a `DataConfig`-like request that returns `Scenes`; adding one is a
module here and a line in `DATASETS`.
"""

from airscene.data.registry import DATASETS, Dataset, make_scenes
from airscene.data.scenes import Scenes

__all__ = ["DATASETS", "Dataset", "Scenes", "make_scenes"]
