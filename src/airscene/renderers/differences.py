"""Finite differences: a gradient for any renderer.

The Jacobian of the images with respect to the poses is taken by differences when the gradient is
asked for, all scenes of a batch and all their displaced copies in one call of the renderer. What a
step is, is a property of the parameter: too small, and no pixel's sample crosses an edge; too
large, and the difference is no derivative.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from airscene.renderers import Renderer, Slots

Images = Float[Array, "batch size size channels"]


def differentiable(
    render: Renderer | Callable[[Slots], Images],
    steps: Sequence[float],
    central: bool = False,
    camera_step: float = 0.0,
) -> Callable[[Slots], Images]:
    """`render` with a gradient with respect to the poses, by forward or central differences.

    `steps` has a step for each parameter of a pose; where scenes say where the camera is,
    `camera_step` is its own. The gradient of things that are not present is zero. What is present,
    and of what kind, has none.
    """
    sizes = np.asarray(steps, np.float32)  # no tracer, whoever asks first

    @jax.custom_vjp
    def rendered(pose: Array, camera: Array | None, present: Array, kind: Array) -> Images:
        return render(Slots(present, kind, pose, camera))

    def forward(
        pose: Array, camera: Array | None, present: Array, kind: Array
    ) -> tuple[Images, tuple[Array, Array]]:
        batch, n, p = pose.shape
        turning = camera is not None
        count = n * p + turning  # of what can be displaced
        moves = jnp.eye(count, n * p).reshape(count, n, p) * sizes
        turns = camera_step * jnp.eye(count)[:, -1] * turning
        both = [-moves], [-turns]
        moves, turns = (
            jnp.concatenate([jnp.zeros_like(a[:1]), a, *(b if central else [])])
            for a, b in zip((moves, turns), both, strict=True)
        )
        times = len(moves)
        moved = (pose + moves[:, None]).reshape(times * batch, n, p)
        turned = (camera + turns[:, None]).reshape(-1) if turning else None
        again = (jnp.tile(a, (times, 1)) for a in (present, kind))
        images = rendered(moved, turned, *again)
        images = images.reshape(times, batch, *images.shape[1:])
        base, ahead = images[0], images[1 : 1 + count]
        behind = images[1 + count :] if central else base
        return base, (ahead - behind, present)

    def backward(
        saved: tuple[Array, Array], cotangent: Images
    ) -> tuple[Array, Array | None, None, None]:
        differences, present = saved
        slopes = jnp.einsum("mbhwc,bhwc->bm", differences, cotangent) / (2 if central else 1)
        moves = present.size // len(present) * len(sizes)
        pose = slopes[:, :moves].reshape(*present.shape, -1) / sizes * present[..., None]
        camera = slopes[:, moves] / camera_step if slopes.shape[1] > moves else None
        return pose, camera, None, None

    rendered.defvjp(forward, backward)
    return lambda slots: rendered(slots.pose, slots.camera, slots.present, slots.kind)
