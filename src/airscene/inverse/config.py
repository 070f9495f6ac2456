"""Settings of networks that invert a renderer."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from airscene.config import (
    Choices,
    RunConfig,
    require,
    require_at_least,
    require_not_negative,
    require_positive,
)

WORLDS: Choices[Any] = Choices("world", ("objects", "tabletop", "tabletop-once", "tabletop-camera"))
"""Worlds by name; each is a `renderers.world.World`."""


@dataclass(frozen=True)
class NetworkConfig:
    """The likelihood and the inference network."""

    hidden: int = 512
    """Units in each hidden layer and in the recurrent state."""
    patch: int = 0
    """Side in pixels of the patches that the network attends to, one per step (0: no patches; the
    paper's recurrent network sees the whole image)."""
    patch_features: int = 64
    """With --patch: features per patch."""
    context: int = 2
    """With --patch: layers in which each patch sees its neighbours."""
    numbered: bool = False
    """Give each step its number as an input. Supervised training of several objects needs it,
    because labels have an order. Without it, a step knows only what earlier steps found."""
    input_size: int = 32
    """Side in pixels of the images the network sees."""
    channels: int = 3
    """Image channels: 1 for grey, 3 for colour."""
    level: bool = False
    """Ignore changes of brightness and contrast: fit the mean training image to each image, and
    show the network the difference. For pictures with a background, not for objects on plain
    black."""
    likelihood_size: int = 32
    """Side in pixels at which images are compared with rendered scenes: 32, 64 or 128."""
    sigma: float = 0.05
    """Standard deviation of a blurred pixel in the likelihood; intensities range from 0 to 1."""
    blur: float = 0.7
    """Standard deviation of the likelihood's Gaussian blur, in pixels of a 32-pixel image."""
    most_sd: float = 0.1
    """Upper bound on the standard deviation of q(z_where), in units of the prior's. Without a
    tight bound, an angle the network cannot yet infer spreads over the whole circle, where the
    likelihood is flat, and stays there."""

    @property
    def height(self) -> int:
        """Height in pixels of the images the network sees."""
        return self.input_size

    @property
    def width(self) -> int:
        """Width in pixels of the images the network sees."""
        return self.input_size

    def __post_init__(self) -> None:
        require_positive(self, "sigma", "blur", "most_sd")
        require(self.channels in (1, 3), f"channels must be 1 or 3, not {self.channels}")
        require_at_least(self, 1, "hidden", "input_size", "patch_features")
        require_not_negative(self, "patch", "context")
        tiled = not self.patch or self.input_size % self.patch == 0
        require(tiled, f"patch {self.patch} does not divide input-size {self.input_size}")
        size = self.likelihood_size
        ok = size >= 1 and size % self.input_size == 0 and 128 % size == 0
        require(
            ok, f"likelihood-size must be 32, 64 or 128 and a multiple of input-size, not {size}"
        )


@dataclass(frozen=True)
class InverseConfig(RunConfig):
    """A training run of a network that inverts a renderer."""

    kind: ClassVar[str] = "inverse"

    world: str = "objects"
    """What stands on the table. objects: a cube, a sphere, a cylinder or nothing. tabletop: up to
    three pieces of crockery. tabletop-once: the same, at most one of each kind. tabletop-camera:
    crockery seen from an unknown angle."""
    meshes: str = ""
    """Folder of meshes to use instead of the bundled objects, one file per kind: OBJ or STL, in
    metres, z up; textures as PNG (default: the bundled objects)."""
    steps: int = 10_000
    batch: int = 128
    learning_rate: float = 5e-4
    eval_every: int = 1_000

    objective: Literal["enumerate", "conditional", "score", "supervised"] = "enumerate"
    """Training objective. enumerate: sum over presence and kind, slot by slot. conditional, for
    several objects: train each slot towards its best value given the other slots. score: sample
    presence and kind, and use the score function with a leave-one-out baseline. supervised, a
    baseline: learn from the true parameters; with several objects it needs --numbered and
    --most-sd 2."""
    floor: float = 0.5
    """With --objective conditional: a slot that is probably empty still learns kind and pose, with
    at least this weight: 0 for none, 1 as if an object were present."""
    samples: int = 2
    """With --objective score: samples per image."""
    renderer: Literal["auto", "opengl", "warp"] = "auto"
    """opengl: MuJoCo's OpenGL renderer, in separate processes. warp: MuJoCo Warp, inside the
    compiled program. auto: warp on a GPU, else opengl."""
    rays: int = 0
    """Samples per pixel along each axis: rays with warp; with opengl, rendered pixels that are
    averaged into one (0: 128 divided by --likelihood-size)."""
    central: bool = True
    """With --objective score: use central finite differences. Forward differences (the paper's)
    need half as many renders, but push every parameter upwards: angles drift away, as
    docs/objects.md shows."""
    sigma_start: float = 0.2
    """The likelihood's sigma at the first step. A large value keeps slots from settling early."""
    blur_start: float = 4.0
    """The likelihood's blur at the first step, in pixels of a 32-pixel image. A wide blur pulls
    misplaced objects towards their place from afar."""
    all_around: bool = False
    """With --objective enumerate or conditional: compare each angle with others all around the
    circle, in steps that shrink during annealing. Helps if the image hardly changes with the
    angle until it is nearly right, as with the handle of a cup. Triples the renders for each
    angle."""
    bonus: float = 10.0
    """Nats added for each object at the first step. Without them, slots stay empty while poses
    are poor."""
    cost: float = 0.0
    """Nats subtracted for each object after annealing, in addition to the prior. Without them, two
    objects of a kind may stay in one place, where the second changes nothing."""
    anneal: int = 4_000
    """Steps over which sigma and blur shrink geometrically to their final values, the angle steps
    of --all-around shrink, and the bonus turns into the cost. Limited to three quarters of all
    steps."""
    randomise: bool = False
    """For a model that will be used on pictures from elsewhere than the renderer: the network sees
    each scene in random colours, sizes and lights, but its answer is scored against the scene in
    its standard look."""
    scenes: int = 20_000
    """Number of training scenes."""
    data_seed: int = 0
    """Seed of the scenes. The same seed gives the same scenes."""

    model: NetworkConfig = field(default_factory=lambda: NetworkConfig(level=True))

    def __post_init__(self) -> None:
        super().__post_init__()
        WORLDS.find(self.world)
        require_at_least(self, 1, "scenes")
        require_positive(self, "sigma_start", "blur_start")
        require(0 <= self.floor <= 1, f"floor must be between 0 and 1, not {self.floor:g}")
        require_not_negative(self, "anneal", "data_seed", "rays")
        ok = self.objective != "score" or self.samples >= 2
        require(ok, f"objective score needs at least 2 samples, not {self.samples}")


SEVERAL: dict[str, Any] = {
    "objective": "conditional",
    "learning_rate": 1e-3,
    "all_around": True,
    "bonus": 5.0,
    "cost": 10.0,
}
"""Settings for finding several objects, in addition to patches (`NetworkConfig.patch`)."""
