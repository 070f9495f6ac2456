"""Renderers that run outside of the compiled program: called back with rows of numbers.

Equal rows are rendered once. That is where it pays: the displaced copies of what is not there, and
the empty scene, are the same in a whole batch.
"""

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from airscene.errors import AirsceneError
from airscene.renderers import Appearance, Renderer, Slots

ONE_AT_A_TIME = threading.RLock()
"""A compiled program may make two calls at once."""


class HostRenderer(Renderer):
    """Base class: rows of numbers to images."""

    failure: Exception | None = None
    """Why the last call failed: see `clear_errors`."""

    @abstractmethod
    def rows(self, slots: Slots, look: Appearance | None = None) -> Float[Array, "batch numbers"]:
        """All that an image depends on."""

    @abstractmethod
    def images(
        self, rows: Float[np.ndarray, "batch numbers"]
    ) -> Float[np.ndarray, "batch size size channels"]:
        """The images of these rows, all different."""

    def render(
        self, slots: Slots, look: Appearance | None = None
    ) -> Float[Array, "batch size size channels"]:
        """Images by a callback."""
        rows = self.rows(slots) if look is None else self.rows(slots, look)
        shape = (rows.shape[0], self.size, self.size, self.channels)
        result = jax.ShapeDtypeStruct(shape, jnp.float32)
        return jax.pure_callback(self._host, result, rows, vmap_method=None)

    def _host(self, rows: Array) -> np.ndarray:
        different, where = np.unique(np.asarray(rows), axis=0, return_inverse=True)
        with ONE_AT_A_TIME:
            self.failure = None
            try:
                return self.images(different)[where.reshape(-1)]
            except Exception as error:
                self.failure = error
                raise


@contextmanager
def clear_errors(renderer: Renderer) -> Iterator[None]:
    """Let what went wrong in a renderer appear as what it is.

    A compiled program wraps what its callbacks raise, traceback and all, into the text of a
    JaxRuntimeError, or of a ValueError where it had run before.
    """
    if isinstance(renderer, HostRenderer):
        renderer.failure = None
    try:
        yield
    except Exception:
        failure = getattr(renderer, "failure", None)
        if failure is None:
            raise
        raise failure from None


def draw(
    renderer: Renderer, slots: Slots, look: Appearance | None = None
) -> Float[np.ndarray, "batch size size channels"]:
    """Images of a batch, outside of a compiled program."""
    with clear_errors(renderer):
        return np.asarray(jax.jit(renderer)(*jax.tree.map(jnp.asarray, (slots, look))))


def _worth_logging(record: logging.LogRecord) -> bool:
    """JAX logs what a callback raises, with its traceback; our one line will be shown anyway."""
    return not (record.exc_info and isinstance(record.exc_info[1], AirsceneError))


logging.getLogger("jax._src.callback").addFilter(_worth_logging)
