"""Inference results for many images, as arrays in pixels of the input images."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from airscene.io.frames import Places


@dataclass(frozen=True)
class Answers:
    """Inference results for many images, as arrays; lengths are in pixels of the input images."""

    count: Int[np.ndarray, " images"]
    """The most probable count n of each image. Only its first n steps below are objects."""
    posterior: Float[np.ndarray, "images counts"]
    presence: Float[np.ndarray, "images steps"]
    where: Float[np.ndarray, "images steps 3"]
    box: Float[np.ndarray, "images steps 4"]
    what: Float[np.ndarray, "images steps codes"]
    elbo: Float[np.ndarray, " images"]
    residual: Float[np.ndarray, " images"]


def answers(places: Places, found: Any) -> Answers:
    """Convert an `Inference` of NumPy arrays to pixels of the input images."""
    posterior = np.exp(np.asarray(found.log_q))
    at_least, where = np.cumsum(posterior[:, ::-1], axis=1)[:, ::-1], places.where(found.pose)
    return Answers(
        count=np.argmax(found.log_q, axis=1),
        posterior=posterior,
        presence=np.minimum(at_least[:, 1:], 1.0),
        where=where,
        box=places.boxes(found.box, where),
        what=found.z_what,
        elbo=np.asarray(found.elbo),
        residual=np.asarray(found.residual),
    )
