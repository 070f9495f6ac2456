"""Vision as inverse graphics: learning to invert a renderer (section 3.2 and appendix I).

The generative model is fixed: a renderer that gives no gradients. What is learned is inference.

problem.py     what is unknown in a scene: slots, kinds, parameters; the problems with names
config.py      all settings
model.py       the inference network
objective.py   the likelihood, and what is learned by: enumeration, what slots had better be, the
               score function, labels
training.py    the compiled training step; the supervised baseline
optimise.py    the other baseline: gradient ascent on the likelihood, image by image
evaluation.py  presence, kinds, positions and angles against the truth
inference.py   what a user holds: images in, `Setting`s out
"""
