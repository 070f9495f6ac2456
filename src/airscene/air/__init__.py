"""AIR and its relatives: 2D scenes of objects in windows (the paper's section 3).

config.py      all settings; presets.py: those with names; parts.py: names of exchangeable parts
model.py       AIR, beside the paper; cores.py, glimpses.py, priors.py, likelihood.py: its parts
estimators.py  what is learned by; labels.py: what known counts add to it
task.py        the training step, and looks at held-out scenes
predictor.py   images in, `Scene`s out; scene.py: these; tiling.py: large pictures
evaluation.py  counts, boxes, and the ELBO with its parts
kind.py        where the package finds all this, and report, comparison, export, served, film
fitting.py     `airscene.fit`; survey.py: a look at pictures before training on them
"""
