"""Vision as inverse graphics: train a network to invert a renderer (section 3.2, appendix I).

The generative model is a fixed renderer without gradients. Only the inference network is trained.

config.py      all settings; presets.py: named configurations
problem.py     the unknowns of a scene: slots, kinds of objects, parameters
model.py       the inference network
objective.py   the likelihood and the training objectives
pictures.py    rendered scenes
task.py        the training step, and the evaluation on validation scenes during training
predictor.py   the model for users: images in, `Layout`s out; scene.py: `Layout` and `Thing`
evaluation.py  presence, kinds, positions and angles compared with the truth
kind.py        the interface to the rest of the package, with report, comparison, export, served
fitting.py     `airscene.invert`
"""
