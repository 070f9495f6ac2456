"""Finite differences: a gradient for any renderer.

The Jacobian of the images with respect to the poses is taken by differences when the gradient is
asked for, all scenes of a batch and all their displaced copies in one call of the renderer. What a
step is, is a property of the parameter: too small, and no pixel's sample crosses an edge; too
large, and the difference is no derivative.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from airscene.renderers import Renderer, Slots

Images = Float[Array, "batch size size channels"]


def differentiable(
    render: Renderer | Callable[[Slots], Images], steps: Sequence[float], central: bool = False
) -> Callable[[Slots], Images]:
    """`render` with a gradient with respect to the poses, by forward or central differences.

    `steps` has a step for each parameter of a pose. The gradient of things that are not present is
    zero. What is present, and of what kind, has none.
    """
    sizes = jnp.asarray(steps, jnp.float32)

    @jax.custom_vjp
    def rendered(pose: Array, present: Array, kind: Array) -> Images:
        return render(Slots(present, kind, pose))

    def forward(pose: Array, present: Array, kind: Array) -> tuple[Images, tuple[Array, Array]]:
        batch, n, p = pose.shape
        moves = jnp.eye(n * p).reshape(n * p, n, p) * sizes
        moves = jnp.concatenate([jnp.zeros((1, n, p)), moves, *([-moves] if central else [])])
        times = len(moves)
        moved = (pose + moves[:, None]).reshape(times * batch, n, p)
        images = rendered(moved, jnp.tile(present, (times, 1)), jnp.tile(kind, (times, 1)))
        images = images.reshape(times, batch, *images.shape[1:])
        base, ahead = images[0], images[1 : 1 + n * p]
        behind = images[1 + n * p :] if central else base
        return base, (ahead - behind, present)

    def backward(saved: tuple[Array, Array], cotangent: Images) -> tuple[Array, None, None]:
        differences, present = saved
        spans = sizes * (2 if central else 1)
        slopes = jnp.einsum("mbhwc,bhwc->bm", differences, cotangent)
        slopes = slopes.reshape(*present.shape, -1) / spans * present[..., None]
        return slopes, None, None

    rendered.defvjp(forward, backward)
    return lambda slots: rendered(slots.pose, slots.present, slots.kind)
