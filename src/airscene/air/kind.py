"""AIR as a kind of model: its entry point for the rest of the package."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airscene.air.config import TRACEABLE, ModelConfig, TrainConfig
from airscene.air.presets import PRESETS
from airscene.config import Edges, Preset, RunConfig, flat, from_dict
from airscene.errors import AirsceneError
from airscene.kinds.evaluation import Evaluation, Evaluator, Question
from airscene.kinds.kind import Calibrated, FilmRequest, Kind, Report, Tick
from airscene.output.measures import Measures

if TYPE_CHECKING:
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

    @property
    def models(self) -> str:
        """What messages call the models of this kind."""
        return "models of 2D scenes"

    def task(self, config: TrainConfig) -> "AIRTask":
        """Training on 2D scenes."""
        from airscene.air.task import AIRTask

        return AIRTask(config)

    def alike(self, config: TrainConfig) -> str | None:
        """All settings except the seed and those that a program can take as arrays."""
        every = flat(config).items()
        return repr([value for name, value in every if name not in (*TRACEABLE, "seed")])

    def together(self, configs: Sequence[TrainConfig]) -> "AIRTask":
        """Training of several runs that are `alike`, by one program."""
        from airscene.air.task import Together

        return Together(configs)

    def skeleton(self, header: dict[str, Any]) -> "AIR":
        """A model with the header's configuration."""
        import jax

        from airscene.air.model import AIR

        return AIR(from_dict(ModelConfig, header["model"]), jax.random.key(0))

    def predictor(self, model: "AIR", note: dict[str, Any] | None = None) -> "Predictor":
        """A predictor: images in, `Scene`s out."""
        from airscene.air.predictor import Predictor

        return Predictor(model, note)

    def evaluator(self, predictor: "Predictor", question: Question) -> Evaluator:
        """An evaluator on held-out scenes, or on the pictures of a folder with known objects."""
        from airscene.air.evaluation import SceneEvaluator
        from airscene.air.picture_evaluation import PictureEvaluator, has_objects, is_folder

        if (
            question.data
            and is_folder(question.data)
            and (predictor.reads_whole or has_objects(question.data))
        ):
            if question != Question(question.data, edges=question.edges):
                raise AirsceneError(
                    "--counts, --seed and --scenes do not apply to pictures with known objects: "
                    "all of them are evaluated"
                )
            return PictureEvaluator(question.data, question.edges, predictor.config.channel)
        if question.edges != "centre":
            raise AirsceneError(
                "--edges applies only to pictures with known masks or boxes: --data FOLDER"
            )
        return SceneEvaluator(predictor, question)

    def measures(self, predictor: "Predictor") -> Measures:
        """The measures of counts, boxes, masks, and the ELBO with its parts."""
        from airscene.air import evaluation, picture_evaluation

        return picture_evaluation.MEASURES | evaluation.MEASURES

    def report(
        self,
        config: TrainConfig,
        rows: list[dict[str, Any]],
        predictor: "Predictor",
        evaluator: Any,
        evaluation: Evaluation,
    ) -> Report:
        """Facts, and figures: reconstructions, curves, confusion, policy and samples."""
        from airscene.air.report import report

        return report(config, rows, predictor, evaluator, evaluation)  # type: ignore[arg-type]

    def compare(self, a: "Predictor", b: "Predictor", question: Question) -> "Comparison":
        """Compare counts, boxes and ELBO of two models on the same scenes."""
        from airscene.air.comparison import compare

        return compare(a, b, question)

    def compare_classical(
        self, model: "Predictor", question: Question
    ) -> dict[str, dict[str, Any]]:
        """Figures of a model, of threshold and watershed, and of blobs."""
        from airscene.air.classical import compare
        from airscene.air.picture_evaluation import is_folder

        if question.data is None:
            raise AirsceneError(
                "classical methods are compared on pictures with known objects: --data FOLDER"
            )
        if not is_folder(question.data):
            raise AirsceneError(f"the folder {question.data} does not exist")
        return compare(model, question.data, question.edges)

    def calibrate(
        self, predictor: "Predictor", folder: Path, edges: Edges, tick: Tick
    ) -> Calibrated:
        """Fit the error bars of a model to the pictures of a folder with known objects."""
        from airscene.air.calibration import calibrate
        from airscene.air.picture_evaluation import is_folder

        if not is_folder(str(folder)):
            raise AirsceneError(f"{folder} is not a folder")
        return calibrate(predictor, folder, edges, tick)

    def served(self, name: str, predictor: "Predictor", description: str) -> "Flat":
        """A model of 2D scenes behind HTTP."""
        from airscene.air.served import Flat

        return Flat(name, predictor, description)

    def film(
        self,
        predictor: "Predictor",
        run: Any,
        request: FilmRequest,
        bar: Callable[[str], AbstractContextManager[Tick]],
    ) -> Iterator[Path]:
        """Write a film of the training, if the run has snapshots, and one of inference."""
        from airscene.air.film import films

        return films(predictor, run, request, bar)
