"""Renderers outside the compiled program, which calls them back with rows of numbers.

Equal rows are rendered once. This saves work because the empty scene and the displaced copies of
absent objects are the same throughout a batch.
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
"""Serialises callbacks: a compiled program may make two at the same time."""


class HostRenderer(Renderer):
    """Base class: turns rows of numbers into images."""

    failure: Exception | None = None
    """The error of the last call, if it failed: see `clear_errors`."""

    @abstractmethod
    def rows(self, slots: Slots, look: Appearance | None = None) -> Float[Array, "batch numbers"]:
        """For each scene, all numbers that its image depends on."""

    @abstractmethod
    def images(
        self, rows: Float[np.ndarray, "batch numbers"]
    ) -> Float[np.ndarray, "batch size size channels"]:
        """The images of these rows, no two of which are equal."""

    def render(
        self, slots: Slots, look: Appearance | None = None
    ) -> Float[Array, "batch size size channels"]:
        """The images of a batch, by a callback."""
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
    """Raise the original exception of a renderer that failed.

    A compiled program turns an exception in a callback, including its traceback, into the text of
    a JaxRuntimeError, or of a ValueError if the program had run before.
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
    """Images of a batch, for calls outside a compiled program."""
    with clear_errors(renderer):
        return np.asarray(jax.jit(renderer)(*jax.tree.map(jnp.asarray, (slots, look))))


def _worth_logging(record: logging.LogRecord) -> bool:
    """False for an `AirsceneError` in a callback, which JAX would log with a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], AirsceneError))


logging.getLogger("jax._src.callback").addFilter(_worth_logging)
