"""All settings of AIR: those of the model and those of training."""

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

MOST_OBJECTS = 1_000
"""Limit for the number of inference steps; whole pictures may have more objects."""
TRACEABLE = (
    "learning_rate", "count_temperature", "baseline_learning_rate", "label_weight", "object_cost",
    "object_rate", "size_sd", "position_sd", "likelihood_sd", "presence_bias",
    "decoder_bias", "where_sd_start",
)  # fmt: skip
"""Settings that affect neither array shapes, nor the compiled program, nor the scenes. Runs that
differ only in these can be trained together: one program takes them as arrays."""


@dataclass(frozen=True)
class ModelConfig(ImageConfig):
    """The generative model and its inference network (the paper's section 3)."""

    max_objects: int = 3
    """Maximum number N of objects in an image or tile; also the number of inference steps."""

    count_prior: Literal["geometric", "binomial", "uniform", "table"] = "geometric"
    """Prior p(n) of the number of objects, truncated at N and renormalised."""
    object_cost: float = 25.0
    """How much an object must improve the fit (log-likelihood, in nats) to be counted: raise it if
    dirt is counted, lower it if objects are missed. It sets the geometric prior, p(n) proportional
    to exp(-cost n)."""
    object_rate: float = 0.5
    """With --count-prior binomial: probability that each of the N objects is present."""
    count_table: tuple[float, ...] = ()
    """With --count-prior table: N + 1 comma-separated weights, for n = 0, 1, ..., N."""

    size_mean: float = 0.45
    """Typical side of an object's window, the square that the model looks at, as a fraction of the
    image's shorter side. Despite the name, it is the median of the prior."""
    size_sd: float = 0.14
    """Prior standard deviation of the natural logarithm of a window's side."""
    position_sd: float = 0.6
    """Prior standard deviation of a window's centre; the image spans -1 to 1."""

    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    """Likelihood p(x | canvas) of a pixel; bernoulli suits nearly black-and-white images."""
    likelihood_sd: float = 0.3
    """With --likelihood gaussian: standard deviation of a pixel; intensities run from 0 to 1."""
    saturate: bool = False
    """Clip the canvas at 1 before the likelihood, for images in which overlaps saturate."""

    core: str = "lstm"
    """Network that proposes the next object: lstm is AIR's; difference is DAIR's and sees the part
    of the image not yet explained; whole makes the whole image one object."""
    patch: int = 10
    """Side in pixels of the patches into which the core divides the image. With --core lstm, 0
    feeds the pixels directly to the network."""
    patch_features: int = 32
    """Number of features per patch."""
    hidden: int = 256
    """With --core lstm: number of units."""
    context: int = 2
    """With --core difference: number of layers that combine each patch with its eight
    neighbours."""
    detach_canvas: bool = True
    """With --core difference: stop gradients through the canvas. The gradients are then biased, but
    training works better."""

    glimpse: str = "vae"
    """Auto-encoder of a window's content: vae is the paper's, draw is a DRAW network."""
    codes: int = 50
    """Length of z_what, the code of an object's appearance."""
    window: int = 20
    """Side in pixels of a window's content: of the glimpse x_att and of the drawing y_att."""
    mlp: int = 200
    """Hidden units of each small network: the one that outputs presence and window from the core's
    state, the glimpse encoder and the glimpse decoder."""
    draw_steps: int = 10
    """With --glimpse draw: number of steps, each with an equal share of the codes; must divide
    codes."""
    draw_hidden: int = 256
    """With --glimpse draw: units of the encoder LSTM and of the decoder LSTM."""
    draw_window: int = 12
    """With --glimpse draw: side in pixels of the patch that each step reads and writes."""

    presence_bias: float = 2.0
    """Initial logit of z_pres; above 0, objects are more likely present than absent at first."""
    decoder_bias: float = -2.0
    """Initial logit of a drawn pixel; well below 0, objects start nearly black."""
    where_sd_start: float = 0.2
    """Initial standard deviation of q(z_where); 1 is as wide as the prior."""

    @property
    def usual_side(self) -> float:
        """The typical side of a window in pixels."""
        return self.size_mean * min(self.height, self.width)

    @property
    def composable(self) -> bool:
        """Whether composites can train the model: see `composing`."""
        gaussian = self.likelihood == "gaussian" and not self.saturate
        return self.core == "difference" and gaussian and self.max_objects > 1

    @property
    def counts_objects(self) -> bool:
        """Whether the model counts objects; the whole core does not."""
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
        most = f"max-objects must be at most {MOST_OBJECTS:,}, not {self.max_objects:,}"
        require(self.max_objects <= MOST_OBJECTS, most)
        require_positive(self, "size_mean", "likelihood_sd", "where_sd_start")
        require(
            self.size_mean <= 1,
            f"size-mean must be at most 1, not {self.size_mean:g}: it is a fraction of the image's "
            "shorter side",
        )
        if self.count_prior == "table":
            table, steps = self.count_table, self.max_objects
            ok = len(table) == steps + 1 and min(table) >= 0 and sum(table) > 0
            require(
                ok,
                f"count-table needs {steps + 1} weights of 0 or more, not all 0, for 0 to {steps} "
                "objects",
            )
        require(
            0 < self.object_rate < 1,
            f"object-rate must be above 0 and below 1, not {self.object_rate}",
        )
        for name in ("object_cost", "presence_bias", "decoder_bias"):
            ok = math.isfinite(getattr(self, name))
            require(ok, f"{name.replace('_', '-')} must be finite")
        for name in ("patch", "context", "size_sd", "position_sd"):
            value = getattr(self, name)
            ok = math.isfinite(value) and value >= 0
            require(ok, f"{name.replace('_', '-')} must be 0 or more, not {value}")
        if self.core == "difference":
            require(self.patch >= 1, "patch must be at least 1 with the difference network")
            positive = self.position_sd > 0
            require(positive, "position-sd must be positive with the difference network")
        one = self.core != "whole" or self.max_objects == 1
        require(one, f"core 'whole' needs max-objects 1, not {self.max_objects}")
        shared = self.glimpse != "draw" or self.codes % self.draw_steps == 0
        require(shared, f"{self.codes} codes are not a multiple of {self.draw_steps} draw-steps")


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """A training run of AIR."""

    kind: ClassVar[str] = "air"

    count_temperature: float = 30.0
    """Temperature of q(n), the inferred probability of each count, at the first step. Above 1, q(n)
    stays soft while the drawings are still poor; otherwise the model may settle too early on
    drawing nothing, or on using one object too many."""
    anneal: int = 1_000
    """Number of steps over which the temperature of q(n) falls to 1."""
    snapshots: int = 0
    """Approximate number of snapshots to keep for `airscene film`, most of them from early in
    training (0: none)."""

    estimator: str = "marginal"
    """Gradient estimator for the count n: marginal sums over n exactly; nvil and vimco sample n;
    concrete makes it continuous."""
    temperature: float = 0.5
    """With --estimator concrete: temperature of the relaxed z_pres."""
    samples: int = 5
    """With --estimator vimco: number K of samples per image, at least 2."""
    baseline_learning_rate: float = 1e-3
    """With --estimator nvil: learning rate of the neural baseline."""
    scale_signal: bool = True
    """With --estimator nvil: divide the learning signal by its running standard deviation."""

    labels: float = 0.0
    """Fraction of the training images whose true counts (and boxes, if known) may be used, e.g.
    0.01; 0 trains without labels. For a folder, the counts are those in counts.csv; with --truth,
    it is the fraction of the pictures or tiles with known objects (0: all)."""
    label_weight: float = 10.0
    """With --labels: weight of the true count's log-probability in the loss."""
    label_boxes: bool = True
    """With --labels: train windows towards the true boxes, if known."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)

    @property
    def subject(self) -> str:
        """The folder of pictures; empty for other data sets."""
        return self.data.path

    @property
    def label_share(self) -> float:
        """The fraction of images whose labels are used: with --truth, all unless --labels says."""
        return self.labels or float(self.data.truth)

    def __post_init__(self) -> None:
        super().__post_init__()
        ESTIMATORS.find(self.estimator)
        require_at_least(self, 1, "samples")
        require_positive(self, "count_temperature", "temperature", "baseline_learning_rate")
        require_not_negative(self, "anneal", "snapshots")
        ends = self.snapshots != 1
        require(ends, "snapshots must be 0 or at least 2 (the first and the last step)")
        m, watched = self.model, self.data.watch_counts
        fits = m.count_prior != "table" or max((*watched, 0)) <= m.max_objects
        require(fits or not m.counts_objects, "the count-table has no weight for the watch-counts")
        require(0 <= self.labels <= 1, f"labels must be between 0 and 1, not {self.labels:g}")
        require_positive(self, "label_weight")
        countable = not self.label_share or m.counts_objects
        require(countable, "labels cannot be used with core 'whole': it does not count objects")
        vimco = self.estimator != "vimco" or self.samples >= 2
        require(vimco, f"vimco needs at least 2 samples, not {self.samples}")
