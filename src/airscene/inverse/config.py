"""Settings of inverse graphics."""

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
"""What stands on the table, each a `renderers.world.World`."""


@dataclass(frozen=True)
class NetworkConfig:
    """The likelihood and the inference network."""

    hidden: int = 512
    """Units of each layer, and of the recurrent state."""
    patch: int = 0
    """See the image in patches of this side, and attend to one after the other (0: see the image as
    a whole, with the paper's recurrent network)."""
    patch_features: int = 64
    """patch: features of each."""
    context: int = 2
    """patch: layers in which a patch sees its neighbours."""
    numbered: bool = False
    """Tell each step which it is: for labels, which have an order. Without it, a step knows only
    what was found before."""
    input_size: int = 32
    """Side in pixels of the image that the network sees."""
    channels: int = 3
    """1 for grey, 3 for colour."""
    level: bool = False
    """See through a change of brightness or contrast: images are compared with the usual one at its
    best fit. For pictures with a background of their own; not for things on plain black."""
    likelihood_size: int = 32
    """Side in pixels at which images are compared: 32, 64 or 128."""
    sigma: float = 0.05
    """Standard deviation of a pixel under the likelihood, after blurring."""
    blur: float = 0.7
    """Width of the likelihood's blur (a Gaussian's sd), in pixels of a 32-pixel image."""
    most_sd: float = 0.1
    """Bound on the sd of q(z_where), in the prior's sds. An angle that is not yet understood would
    otherwise spread over the whole circle, where the likelihood is flat, and stay there."""

    @property
    def height(self) -> int:
        """Of the image that the network sees."""
        return self.input_size

    @property
    def width(self) -> int:
        """Of the image that the network sees."""
        return self.input_size

    def __post_init__(self) -> None:
        require_positive(self, "sigma", "blur", "most_sd")
        require(self.channels in (1, 3), f"channels must be 1 or 3, not {self.channels}")
        require_at_least(self, 1, "hidden", "input_size", "patch_features")
        require_not_negative(self, "patch", "context")
        tiled = not self.patch or self.input_size % self.patch == 0
        require(tiled, f"patches of {self.patch} pixels do not tile {self.input_size}")
        size = self.likelihood_size
        ok = size >= 1 and size % self.input_size == 0 and 128 % size == 0
        require(ok, f"likelihood-size must be 32, 64 or 128, not below input-size; not {size}")


@dataclass(frozen=True)
class InverseConfig(RunConfig):
    """A training run of a network that inverts a renderer."""

    kind: ClassVar[str] = "inverse"

    world: str = "objects"
    """What stands on the table: objects (one thing), tabletop (crockery), tabletop-once (at most
    one of each kind), tabletop-camera (crockery seen from an unknown angle)."""
    meshes: str = ""
    """A folder of meshes (OBJ or STL, in metres, z up; textures as PNG): things to use instead of
    those that come along, each file a kind."""
    steps: int = 10_000
    batch: int = 128
    learning_rate: float = 5e-4
    eval_every: int = 1_000

    objective: Literal["enumerate", "conditional", "score", "supervised"] = "enumerate"
    """enumerate: presence and kind are summed out, slot by slot. conditional, for several things:
    each slot learns what it had better be, given the others. score: presence and kind are sampled,
    with the score function and a leave-one-out baseline. supervised, a baseline: from the true
    parameters; for several things it needs --numbered and --most-sd 2."""
    floor: float = 0.5
    """conditional: what a slot that is probably empty still learns of kind and pose, at least, as a
    share of what it would if something were there."""
    samples: int = 2
    """score: samples of each image."""
    renderer: Literal["auto", "opengl", "warp"] = "auto"
    """MuJoCo's OpenGL in processes, or MuJoCo Warp in the program; auto: Warp on a GPU."""
    rays: int = 0
    """Rays a pixel along each axis; opengl: pixels that are averaged (0: so many as make 128)."""
    central: bool = True
    """score: central finite differences. Forward ones (the paper's) cost half as many renders, but
    push every parameter upwards: angles drift away (see docs/objects.md)."""
    sigma_start: float = 0.2
    """The likelihood's sigma at the first step: wide, so that nothing is decided early."""
    blur_start: float = 4.0
    """The likelihood's blur at the first step: wide, so that things attract one another."""
    all_around: bool = False
    """enumerate, conditional: turn things all around to see which way is better, at first, then
    ever less: for an angle that shows only when it is nearly right, such as a handle's. Three times
    as many renders for each such angle."""
    bonus: float = 10.0
    """Nats that a thing is worth at the first step: else nothing is drawn where poses are poor."""
    cost: float = 0.0
    """Nats that a thing costs in the end, beside what the prior says: else two of a kind may stay
    in one place, where the second changes nothing."""
    anneal: int = 4_000
    """Steps over which sigma and blur narrow, geometrically, to what they are in the end, angles
    are compared in ever smaller steps, and the bonus turns into the cost. At most three quarters
    of all."""
    randomise: bool = False
    """Show scenes in random colours, sizes and lights, and compare what is drawn with the same
    scenes as they usually look: for pictures that a renderer has not made."""
    scenes: int = 20_000
    """Scenes to train on."""
    data_seed: int = 0
    """Seed of the scenes."""

    model: NetworkConfig = field(default_factory=lambda: NetworkConfig(level=True))

    def __post_init__(self) -> None:
        super().__post_init__()
        WORLDS.find(self.world)
        require_at_least(self, 1, "scenes")
        require_positive(self, "sigma_start", "blur_start")
        require(0 <= self.floor <= 1, f"floor must lie between 0 and 1, not {self.floor}")
        require_not_negative(self, "anneal", "data_seed", "rays")
        ok = self.objective != "score" or self.samples >= 2
        require(ok, f"score needs samples of at least 2, not {self.samples}")


SEVERAL: dict[str, Any] = {
    "objective": "conditional",
    "learning_rate": 1e-3,
    "all_around": True,
    "bonus": 5.0,
    "cost": 10.0,
}
"""What finding several things takes, beside patches (`NetworkConfig.patch`)."""
