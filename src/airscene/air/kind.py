"""AIR as a kind of model: where the rest of the package finds its parts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airscene.air.config import TRACEABLE, ModelConfig, TrainConfig
from airscene.air.presets import PRESETS
from airscene.config import Preset, RunConfig, flat, from_dict
from airscene.kinds.evaluation import Evaluation, Question
from airscene.kinds.kind import FilmRequest, Kind, Report, Tick
from airscene.output.measures import Measures

if TYPE_CHECKING:
    from airscene.air.evaluation import SceneEvaluator
    from airscene.air.model import AIR
    from airscene.air.predictor import Predictor
    from airscene.air.served import Flat
    from airscene.air.task import AIRTask
    from airscene.output.comparison import Comparison


class AIRKind(Kind):
    """AIR, DAIR and DRAW on 2D scenes."""

    name: ClassVar[str] = "air"
    config: ClassVar[type[RunConfig]] = TrainConfig
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    packages: ClassVar[tuple[str, ...]] = ("air", "data", "nn")

    def task(self, config: TrainConfig) -> "AIRTask":
        """Training on 2D scenes."""
        from airscene.air.task import AIRTask

        return AIRTask(config)

    def alike(self, config: TrainConfig) -> str | None:
        """All settings but those that one program can take as arrays."""
        every = flat(config).items()
        return repr([value for name, value in every if name not in (*TRACEABLE, "seed")])

    def together(self, configs: Sequence[TrainConfig]) -> "AIRTask":
        """Runs that differ in such settings alone."""
        from airscene.air.task import Together

        return Together(configs)

    def skeleton(self, header: dict[str, Any]) -> "AIR":
        """The model of a configuration."""
        import jax

        from airscene.air.model import AIR

        return AIR(from_dict(ModelConfig, header["model"]), jax.random.key(0))

    def predictor(self, model: "AIR", note: dict[str, Any] | None = None) -> "Predictor":
        """Images in, `Scene`s out."""
        from airscene.air.predictor import Predictor

        return Predictor(model, note)

    def evaluator(self, predictor: "Predictor", question: Question) -> "SceneEvaluator":
        """Held-out scenes."""
        from airscene.air.evaluation import SceneEvaluator

        return SceneEvaluator(predictor, question)

    def measures(self, predictor: "Predictor") -> Measures:
        """Counts, boxes, the ELBO and its parts."""
        from airscene.air.evaluation import MEASURES

        return MEASURES

    def report(
        self,
        config: TrainConfig,
        rows: list[dict[str, Any]],
        predictor: "Predictor",
        evaluator: Any,
        evaluation: Evaluation,
    ) -> Report:
        """Reconstructions, curves, confusion, policy, samples."""
        from airscene.air.report import report

        return report(config, rows, predictor, evaluator, evaluation)  # type: ignore[arg-type]

    def compare(self, a: "Predictor", b: "Predictor", question: Question) -> "Comparison":
        """Counts, boxes and ELBO of two models on the same scenes."""
        from airscene.air.comparison import compare

        return compare(a, b, question)

    def served(self, name: str, predictor: "Predictor", description: str) -> "Flat":
        """Scenes made of patches."""
        from airscene.air.served import Flat

        return Flat(name, predictor, description)

    def film(
        self,
        predictor: "Predictor",
        run: Any,
        request: FilmRequest,
        bar: Callable[[str], AbstractContextManager[Tick]],
    ) -> Iterator[Path]:
        """How a run learned, if it has snapshots; the model at work on moving objects."""
        from airscene.air.film import films

        return films(predictor, run, request, bar)
