"""Gradients of any renderer by finite differences.

When a gradient is needed, the Jacobian of the images with respect to the poses is computed by
finite differences: one call of the renderer for all scenes of a batch and all their displaced
copies. Each parameter has its own step. If the step is too small, no pixel changes; if it is too
large, the difference is a poor estimate of the derivative.
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

    `steps` holds a step for each parameter of a pose; `camera_step` is the step of the camera's
    angle, if scenes have one. The gradient of absent objects is zero. Presence and kind have no
    gradient.
    """
    sizes = np.asarray(steps, np.float32)  # NumPy, so that no tracer leaks

    @jax.custom_vjp
    def rendered(pose: Array, camera: Array | None, present: Array, kind: Array) -> Images:
        return render(Slots(present, kind, pose, camera))

    def forward(
        pose: Array, camera: Array | None, present: Array, kind: Array
    ) -> tuple[Images, tuple[Array, Array]]:
        batch, n, p = pose.shape
        turning = camera is not None
        count = n * p + turning  # number of displacements
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
