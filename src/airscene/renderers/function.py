"""Any Python function as a renderer."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from airscene.errors import AirsceneError
from airscene.renderers import Appearance, Slots, box_average
from airscene.renderers.host import HostRenderer


class Function(HostRenderer):
    """A renderer that calls `draw(present, kind, pose)` for each scene.

    The function takes NumPy arrays of shapes (slots,), (slots,) and (slots, parameters). It returns
    a square image of side `frame_size`: (side, side) or (side, side, channels), uint8, or float
    from 0 to 1. The image is averaged down to `size`.
    """

    def __init__(
        self,
        draw: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
        size: int,
        frame_size: int,
        channels: int = 3,
    ):
        self.draw, self.size, self.frame_size, self.channels = draw, size, frame_size, channels

    def rows(self, slots: Slots, look: Appearance | None = None) -> Float[Array, "batch numbers"]:
        """The number of slots, then all parameters, with zeros for empty slots."""
        if look is not None:
            raise AirsceneError("a function renderer cannot change the appearance of scenes")
        batch, n = slots.present.shape
        here = slots.present > 0
        kind, pose = jnp.where(here, slots.kind, 0), jnp.where(here[..., None], slots.pose, 0)
        parts = [jnp.full((batch, 1), n), slots.present, kind, pose.reshape(batch, -1)]
        return jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=1)

    def images(
        self, rows: Float[np.ndarray, "batch numbers"]
    ) -> Float[np.ndarray, "batch size size channels"]:
        """The images of the rows, one call of the function each."""
        return np.stack([box_average(self._frame(row), self.size) for row in rows])

    def _frame(self, row: np.ndarray) -> Float[np.ndarray, "side side channels"]:
        n = int(row[0])
        present, kind, pose = np.split(row[1:], [n, 2 * n])
        image = np.asarray(self.draw(present, kind.astype(int), pose.reshape(n, -1)))
        image = image[..., None] if image.ndim == 2 else image
        expected = (self.frame_size, self.frame_size, self.channels)
        if image.shape != expected:
            raise AirsceneError(f"the function returned shape {image.shape}, expected {expected}")
        if image.dtype == np.uint8:
            return image.astype(np.float32) / 255
        if not np.issubdtype(image.dtype, np.floating):
            raise AirsceneError(f"the function returned {image.dtype}, expected uint8 or float")
        return np.clip(image, 0, 1).astype(np.float32)
