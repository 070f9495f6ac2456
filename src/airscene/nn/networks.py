"""Small networks: building blocks of cores, glimpse auto-encoders and baselines."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


def linear(layer: eqx.nn.Linear, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    """X W^T + b for any number of rows. Mapping the layer over rows would transpose the result."""
    assert layer.bias is not None
    return x @ layer.weight.T + layer.bias


class MLP(eqx.Module):
    """A network with one hidden layer of ReLUs. All its leaves are arrays, as `jax.vmap` needs."""

    hidden: eqx.nn.Linear
    output: eqx.nn.Linear

    def __init__(self, inputs: int, hidden: int, outputs: int, key: Key[Array, ""]):
        keys = jax.random.split(key)
        self.hidden = eqx.nn.Linear(inputs, hidden, key=keys[0])
        self.output = eqx.nn.Linear(hidden, outputs, key=keys[1])

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        """W_2 max(0, W_1 x + b_1) + b_2."""
        return linear(self.output, jax.nn.relu(linear(self.hidden, x)))


def lstm(
    gates: Float[Array, " gates"], cell: Float[Array, " cells"]
) -> tuple[Float[Array, " cells"], Float[Array, " cells"]]:
    """An LSTM's output and new cells. A forget bias of 1 lets cells keep most of their value."""
    write, forget, content, show = jnp.split(gates, 4)
    cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(write) * jnp.tanh(content)
    return jax.nn.sigmoid(show) * jnp.tanh(cell), cell


class PatchEmbedding(eqx.Module):
    """Turns each patch of an image into features, independently, by one linear layer and a ReLU."""

    linear: eqx.nn.Linear
    patch: int = eqx.field(static=True)

    def __init__(self, patch: int, channels: int, features: int, key: Key[Array, ""]):
        self.patch = patch
        self.linear = eqx.nn.Linear(patch**2 * channels, features, key=key)

    def __call__(
        self, x: Float[Array, "height width channels"]
    ) -> Float[Array, "rows columns features"]:
        """The features of all patches. Black padding fills incomplete patches."""
        p, (height, width, channels) = self.patch, x.shape
        x = jnp.pad(x, ((0, -height % p), (0, -width % p), (0, 0)))
        rows, columns = x.shape[0] // p, x.shape[1] // p
        patches = x.reshape(rows, p, columns, p, channels).swapaxes(1, 2)
        return jax.nn.relu(linear(self.linear, patches.reshape(rows, columns, -1)))


def positive(raw: Float[Array, "*shape"], start: float | Array) -> Float[Array, "*shape"]:
    """Convert a network's output to a standard deviation: positive, and `start` for output 0."""
    return jax.nn.softplus(raw + jnp.log(jnp.expm1(start))) + 1e-4


def with_neighbours(
    features: Float[Array, "rows columns features"],
) -> Float[Array, "rows columns more"]:
    """The features of each patch and its eight neighbours, joined; zeros outside the image."""
    return inner_neighbours(jnp.pad(features, ((1, 1), (1, 1), (0, 0))))


def inner_neighbours(
    features: Float[Array, "rows columns features"],
) -> Float[Array, "less fewer more"]:
    """`with_neighbours` of the patches that are not at the edge."""
    rows, columns = features.shape[0] - 2, features.shape[1] - 2
    shifts = [features[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifts, axis=-1)


def linear_on_neighbours(
    layer: eqx.nn.Linear, features: Float[Array, "rows columns features"]
) -> Float[Array, "rows columns outputs"]:
    """`linear(layer, with_neighbours(features))`, but faster without gradients.

    Three rows are joined, not nine patches. One product gives what each patch contributes to its
    left neighbour, itself and its right neighbour, and these contributions are then added. The
    rows follow each other in one line, with a column of zeros between them.
    """
    rows, columns, n = features.shape
    assert layer.bias is not None
    room = jnp.pad(features, ((1, 1), (0, 1), (0, 0)))
    three = jnp.concatenate([room[i : i + rows] for i in range(3)], axis=-1)
    weight = layer.weight.reshape(-1, 3, 3, n).transpose(1, 3, 2, 0).reshape(3 * n, -1)
    line = (three @ weight).reshape(rows * (columns + 1), 3, -1)
    left, middle, right = (line[:, j] for j in range(3))
    ends = jnp.zeros((1, left.shape[-1]), left.dtype)
    left, right = jnp.concatenate([ends, left[:-1]]), jnp.concatenate([right[1:], ends])
    return (left + middle + right).reshape(rows, columns + 1, -1)[:, :columns] + layer.bias


@jax.custom_vjp
def differentiated_as(
    value: Float[Array, "*shape"], same: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`value`, with the gradient of another expression that is equal to it (reverse mode only).

    If no gradient is taken, the compiler drops the computation of `same`.
    """
    return value


differentiated_as.defvjp(
    lambda value, same: (value, None), lambda _, gradient: (jnp.zeros_like(gradient), gradient)
)
