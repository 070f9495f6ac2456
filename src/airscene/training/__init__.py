"""The training loop, on one device or many, in one process or several."""
