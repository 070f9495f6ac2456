"""Run folders: train, resume, evaluate, report; and sweeps, which are many of them."""
