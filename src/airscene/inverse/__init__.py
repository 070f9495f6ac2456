"""Vision as inverse graphics: learning to invert a renderer (section 3.2 and appendix I).

The generative model is fixed: a renderer that gives no gradients. What is learned is inference.

config.py      all settings; presets.py: those with names
problem.py     what is unknown in a scene: slots, kinds of things, parameters
model.py       the inference network
objective.py   the likelihood, and what is learned by
pictures.py    rendered scenes
task.py        the training step, and looks at held-out pictures
predictor.py   what a user holds: images in, `Layout`s out; scene.py: these
evaluation.py  presence, kinds, positions and angles against the truth
kind.py        where the rest of the package finds all this, and report, comparison, export, served
fitting.py     `airscene.invert`
"""
