"""The interface that every kind of model implements for the rest of the package.

kind.py        `Kind`: the entry point to everything that a kind provides
scene.py       `BaseScene`: the objects found in an image
predictor.py   `BasePredictor`: a trained model that infers scenes from images
evaluation.py  `Evaluator`: figures on held-out data
served.py      `Served`: a model behind HTTP

`air/` and `inverse/` are the two kinds; their files have the same names as these.
"""
