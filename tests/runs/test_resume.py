"""Resuming a run that is complete."""

import numpy as np

from airscene.air.predictor import Predictor
from airscene.cli import main
from airscene.models import load
from airscene.runs.run import Run

SMALL = ["--steps=4", "--eval-every=2", "--batch=4", "--mlp=8", "--codes=4", "--scenes=40"]


def test_a_calibrated_model_survives_and_a_damaged_one_is_written_again(tmp_path) -> None:
    out = str(tmp_path / "run")
    words = ["train", "digits", *SMALL, "--hidden=8", "--patch-features=4", "--out", out]
    assert main(words) == 0
    run, model = Run.open(tmp_path / "run"), load(out)
    assert isinstance(model, Predictor)
    Predictor(model.air, model.note | {"confidence": {"missed": 0.25}}).save(run.model)
    assert main([*words, "--resume"]) == 0
    assert load(out).note["confidence"] == {"missed": 0.25}
    run.model.write_bytes(run.model.read_bytes()[:-50])
    assert main([*words, "--resume"]) == 0
    again = load(out)
    assert isinstance(again, Predictor) and "confidence" not in again.note
    image = model.sample(1, n=1).render()
    np.testing.assert_array_equal(
        again.infer(image).count_posterior, model.infer(image).count_posterior
    )
