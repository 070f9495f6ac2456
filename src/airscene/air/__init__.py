"""AIR and its relatives: 2D scenes of objects in windows (the paper's section 3).

config.py      all settings; presets.py: named settings; parts.py: names of exchangeable parts
model.py       AIR in the paper's notation; cores, glimpses, priors, likelihood: its parts
estimators.py  the training losses; labels.py: the extra loss for images with a known count
task.py        the training step, and the evaluation of validation scenes during training
predictor.py   images in, `Scene`s out; scene.py: `Scene` and `Object`; tiling.py: large pictures
evaluation.py  counts, boxes, and the ELBO with its parts
kind.py        the entry point to all of these, and to report, comparison, export, served, film
fitting.py     `airscene.fit`; survey.py: measures pictures before training on them
"""
