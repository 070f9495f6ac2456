"""Run folders: training, resuming, evaluation, reports, and sweeps over many runs."""
