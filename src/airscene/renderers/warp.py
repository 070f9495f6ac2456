"""MuJoCo Warp: ray casting inside the compiled program, on a GPU or a CPU."""

import inspect
import logging
from collections.abc import Callable
from importlib import import_module

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from airscene.errors import AirsceneError
from airscene.renderers import Appearance, Renderer, Slots
from airscene.renderers.world import RENDER_SIZE, World


class Warp(Renderer):
    """A ray caster with `samples` x `samples` rays per pixel; by default, 128 x 128 per image."""

    def __init__(self, world: World, size: int, samples: int | None = None):
        try:
            warp = import_module("warp")
            warp.config.log_level = logging.ERROR
            mujoco, mujoco_warp = map(import_module, ("mujoco", "mujoco_warp"))
        except ImportError:
            raise AirsceneError("3D scenes need MuJoCo Warp: pip install 'airscene[3d]'") from None
        self.world, self.size = world, size
        self.samples = max(1, RENDER_SIZE // size) if samples is None else samples
        self._model = mujoco.MjModel.from_xml_string(world.mjcf())
        self._data = mujoco.MjData(self._model)
        mujoco.mj_forward(self._model, self._data)
        self._mjw, self._wp = mujoco_warp, warp
        self._programs: dict[tuple[int, bool], Callable] = {}

    def render(
        self, slots: Slots, look: Appearance | None = None
    ) -> Float[Array, "batch size size channels"]:
        """The images of a batch; each batch size has its own worlds, with and without looks."""
        batch = slots.present.shape[0]
        which = batch, look is not None
        if which not in self._programs:
            device = self._wp.device_from_jax(jax.local_devices()[0])
            with jax.ensure_compile_time_eval(), self._wp.ScopedDevice(device):
                self._programs[which] = self._program(*which)
        bodies = self.world.mocap(slots, look)
        inputs = [bodies[..., :3], bodies[..., 3:]]
        if look is not None:
            colours, light = self.world.paint(look)
            opaque = jnp.pad(colours, [(0, 0), (0, 0), (0, 1)], constant_values=1.0)
            inputs += [opaque, *(light[:, i : i + 1] for i in range(3))]
        (pixels,) = self._programs[which](*inputs)
        if self.samples == 1:  # packed 0xAARRGGBB, rounded down: half a level too dark on average
            pixels = jnp.stack([(pixels >> shift) & 255 for shift in (16, 8, 0)], axis=-1)
            pixels = jnp.where((pixels > 0) & (pixels < 255), pixels + 0.5, pixels)
        image = pixels.astype(jnp.float32) / (255 * self.samples**2)
        return image.reshape(batch, self.size, self.size, 3)

    def _program(self, batch: int, looks: bool) -> Callable:
        """Create the worlds of a batch, and return the call that renders them."""
        mjw, wp, size = self._mjw, self._wp, self.size
        model = mjw.put_model(self._model)
        data = mjw.put_data(self._model, self._data, nworld=batch)
        context = mjw.create_render_context(
            self._model,
            nworld=batch,
            cam_res=(size, size),
            render_rgb=True,
            render_depth=False,
            render_seg=False,
            samples_per_pixel=self.samples,
            enable_specular=False,
        )
        source = context.rgb_data if self.samples == 1 else context.aa_accum
        pixel = wp.uint32 if self.samples == 1 else wp.vec3

        def cast(pos, quat, out):
            wp.copy(data.mocap_pos, pos)
            wp.copy(data.mocap_quat, quat)
            mjw.kinematics(model, data)
            mjw.camlight(model, data)
            mjw.refit_bvh(model, data, context)
            mjw.render(model, data, context)
            wp.copy(out, source)

        def cast_look(pos, quat, colour, direction, ambient, diffuse, out):
            wp.copy(model.geom_rgba, colour)
            wp.copy(model.light_dir, direction)
            wp.copy(model.light_ambient, ambient)
            wp.copy(model.light_diffuse, diffuse)
            cast(pos, quat, out)

        if looks:  # otherwise all worlds share one look
            model.geom_rgba = wp.zeros((batch, self._model.ngeom), dtype=wp.vec4)
            for name in ("light_dir", "light_ambient", "light_diffuse"):
                setattr(model, name, wp.zeros((batch, 1), dtype=wp.vec3))
        plain = inspect.unwrap(cast_look if looks else cast)  # a type checker may have wrapped it
        types = {"quat": wp.quat, "colour": wp.vec4, "out": pixel}
        plain.__annotations__ = {
            name: wp.array2d(dtype=types.get(name, wp.vec3))
            for name in inspect.signature(plain).parameters
        }
        return wp.jax_callable(plain, num_outputs=1, output_dims={"out": (batch, size * size)})
