"""What every kind of model provides: the interface between models and everything around them.

kind.py        `Kind`: one entry for all that a kind can do
scene.py       `BaseScene`: what was found in an image
predictor.py   `BasePredictor`: a trained model, ready to take images apart
evaluation.py  `Evaluator`: figures on held-out data
served.py      `Served`: a model behind HTTP

`air/` and `inverse/` are the two kinds; their files have the names of these.
"""
