"""All settings of AIR: the model, and its training."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from airscene.air.parts import CORES, ESTIMATORS, GLIMPSES
from airscene.config import (
    DataConfig,
    ImageConfig,
    RunConfig,
    require,
    require_at_least,
    require_not_negative,
    require_positive,
)

TRACEABLE = (
    "learning_rate", "count_temperature", "baseline_learning_rate", "label_weight", "object_cost",
    "object_rate", "size_mean", "size_sd", "position_sd", "likelihood_sd", "presence_bias",
    "decoder_bias", "where_sd_start",
)  # fmt: skip
"""Settings of a `TrainConfig` that change no shape, no program and no scene: models that differ in
these alone can be trained together, by one program that gets them as arrays."""


@dataclass(frozen=True)
class ModelConfig(ImageConfig):
    """The generative model and its inference network (the paper's section 3)."""

    max_objects: int = 3
    """N, the most objects (inference steps) in an image."""

    count_prior: Literal["geometric", "binomial", "uniform", "table"] = "geometric"
    """p(n), truncated at N and renormalised."""
    object_cost: float = 25.0
    """Geometric p(n): nats that each object costs, p(n) proportional to exp(-cost n)."""
    object_rate: float = 0.5
    """Binomial p(n): the probability that each of the N objects is there."""
    count_table: tuple[float, ...] = ()
    """Table p(n): N + 1 weights for n = 0, 1, ..., N."""

    size_mean: float = 0.45
    """Prior median of a window's side, relative to the image's shorter side."""
    size_sd: float = 0.14
    """Prior standard deviation of the logarithm of a window's side."""
    position_sd: float = 0.6
    """Prior standard deviation of a window's centre (the image spans -1 to 1)."""

    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    """p(x | canvas). Bernoulli suits images that are nearly black and white."""
    likelihood_sd: float = 0.3
    """Standard deviation of a pixel under the Gaussian likelihood."""
    saturate: bool = False
    """Clip the canvas at 1 before the likelihood, for images whose overlaps saturate."""

    core: str = "lstm"
    """What proposes the next object: lstm (AIR's), difference (DAIR's network on what is not yet
    explained), or whole (one object, the whole image)."""
    patch: int = 10
    """The core sees the image in patches of this side (lstm: 0 for the image as it is)."""
    patch_features: int = 32
    """Features per patch."""
    hidden: int = 256
    """lstm: units of the recurrent core."""
    context: int = 2
    """difference: layers in which a patch sees its neighbours."""
    detach_canvas: bool = True
    """difference: no gradients through what is drawn so far. That biases them; it trains better."""

    glimpse: str = "vae"
    """The auto-encoder of what is in a window: vae (the paper's), or draw (a DRAW network)."""
    codes: int = 50
    """Dimensions of z_what, the code of an object's appearance."""
    window: int = 20
    """Side in pixels of the glimpse x_att and of the drawing y_att."""
    mlp: int = 200
    """Hidden units of the small networks (omega from h, glimpse encoder, glimpse decoder)."""
    draw_steps: int = 10
    """draw: steps, which share the codes equally."""
    draw_hidden: int = 256
    """draw: units of the encoder's and the decoder's LSTM."""
    draw_window: int = 12
    """draw: side in pixels of what a step reads and writes."""

    presence_bias: float = 2.0
    """Initial logit of z_pres: above 0, objects are tried before they are given up."""
    decoder_bias: float = -2.0
    """Initial logit of a drawn pixel: below 0, objects start nearly empty."""
    where_sd_start: float = 0.2
    """Initial standard deviation of q(z_where); its prior's is 1."""

    @property
    def counts_objects(self) -> bool:
        """Whether the model has objects to count; one of the whole image has not."""
        return self.core != "whole"

    def __post_init__(self) -> None:
        super().__post_init__()
        CORES.find(self.core)
        GLIMPSES.find(self.glimpse)
        at_least_one = (
            "hidden codes window mlp max_objects patch_features draw_steps draw_hidden draw_window"
        )
        for name in at_least_one.split():
            value = getattr(self, name)
            require(value >= 1, f"{name.replace('_', '-')} must be at least 1, not {value}")
        require_positive(self, "size_mean", "likelihood_sd", "where_sd_start")
        if self.count_prior == "table":
            table, steps = self.count_table, self.max_objects
            ok = len(table) == steps + 1 and min(table) >= 0 and sum(table) > 0
            require(ok, f"count-table needs {steps + 1} weights for 0 to {steps} objects")
        require(0 < self.object_rate < 1, f"object-rate must lie in (0, 1), not {self.object_rate}")
        for name in ("object_cost", "presence_bias", "decoder_bias"):
            ok = math.isfinite(getattr(self, name))
            require(ok, f"{name.replace('_', '-')} must be finite")
        for name in ("patch", "context", "size_sd", "position_sd"):
            value = getattr(self, name)
            ok = math.isfinite(value) and value >= 0
            require(ok, f"{name.replace('_', '-')} must not be negative, not {value}")
        if self.core == "difference":
            require(self.patch >= 1, "patch must be at least 1 for the difference core")
            require(self.position_sd > 0, "position-sd must be positive for the difference core")
        one = self.core != "whole" or self.max_objects == 1
        require(one, f"the whole core has one object, so max-objects 1, not {self.max_objects}")
        shared = self.glimpse != "draw" or self.codes % self.draw_steps == 0
        require(shared, f"{self.codes} codes cannot be shared by {self.draw_steps} draw-steps")


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """A training run of AIR."""

    kind: ClassVar[str] = "air"

    count_temperature: float = 30.0
    """Temperature of q(n) at the first step: above 1, decisions on n stay soft while drawings are
    still poor, which keeps a run from settling early on drawing nothing, or on one object more."""
    anneal: int = 1_000
    """Steps over which the temperature of q(n) falls to 1."""
    snapshots: int = 0
    """About how many snapshots of the models to keep over training, most of them early, for
    `airscene film` (0: none)."""

    estimator: str = "marginal"
    """Gradient estimator for the count n: marginal (exact), nvil, concrete or vimco (sampled)."""
    temperature: float = 0.5
    """concrete: temperature of the relaxed z_pres."""
    samples: int = 5
    """vimco: samples K per image."""
    baseline_learning_rate: float = 1e-3
    """nvil: learning rate of the neural baseline."""
    scale_signal: bool = True
    """nvil: centre and scale the learning signal by its running moments."""

    labels: float = 0.0
    """Share of the training images whose true counts (and boxes, where known) may be used, e.g.
    0.01; 0 trains without labels."""
    label_weight: float = 10.0
    """With labels: how much the log-probability of a true count weighs in the loss."""
    label_boxes: bool = True
    """With labels: where boxes are known, draw windows to them."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)

    @property
    def subject(self) -> str:
        """The folder of pictures, if there is one."""
        return self.data.path

    def __post_init__(self) -> None:
        super().__post_init__()
        ESTIMATORS.find(self.estimator)
        require_at_least(self, 1, "samples")
        require_positive(self, "count_temperature", "temperature", "baseline_learning_rate")
        require_not_negative(self, "anneal", "snapshots")
        ends = self.snapshots != 1
        require(ends, "snapshots must be 0 or at least 2: the first and the last step")
        m, watched = self.model, self.data.watch_counts
        fits = m.count_prior != "table" or max((*watched, 0)) <= m.max_objects
        require(fits or not m.counts_objects, "the count-table has no weight for the watch-counts")
        require(0 <= self.labels <= 1, f"labels must be a share from 0 to 1, not {self.labels}")
        require_positive(self, "label_weight")
        countable = not self.labels or m.counts_objects
        require(countable, "the whole core has no count to learn from labels")
        vimco = self.estimator != "vimco" or self.samples >= 2
        require(vimco, f"vimco needs samples of at least 2, not {self.samples}")
