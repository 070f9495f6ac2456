"""`InverseKind`: the interface of networks that invert a renderer to the rest of the package."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airscene.config import Preset, RunConfig, from_dict, require
from airscene.errors import AirsceneError
from airscene.inverse.config import InverseConfig, NetworkConfig
from airscene.inverse.presets import PRESETS
from airscene.kinds.evaluation import Evaluation, Question
from airscene.kinds.kind import Kind, Report
from airscene.output.measures import Measures

if TYPE_CHECKING:
    from airscene.inverse.evaluation import LayoutEvaluator
    from airscene.inverse.model import InverseNetwork
    from airscene.inverse.predictor import InversePredictor
    from airscene.inverse.served import Solid
    from airscene.inverse.task import InverseTask
    from airscene.output.comparison import Comparison


class InverseKind(Kind):
    """Vision as inverse graphics."""

    name: ClassVar[str] = "inverse"
    config: ClassVar[type[RunConfig]] = InverseConfig
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    packages: ClassVar[tuple[str, ...]] = ("inverse", "nn", "renderers")

    @property
    def models(self) -> str:
        """What messages call the models of this kind."""
        return "models that invert a renderer"

    def settled(self, config: Any) -> Any:
        """The configuration with `auto` resolved, and the absolute path of the meshes."""
        if find_spec("mujoco") is None:
            raise AirsceneError("3D scenes need MuJoCo: pip install 'airscene[3d]'")
        from airscene.renderers import resolved

        colour = config.model.channels == 3
        require(colour, "channels must be 3: worlds are rendered in colour")
        meshes = str(Path(config.meshes).resolve()) if config.meshes else ""
        return replace(config, renderer=resolved(config.renderer), meshes=meshes)

    def task(self, config: InverseConfig) -> "InverseTask":
        """The training task, on rendered scenes."""
        from airscene.inverse.task import InverseTask

        return InverseTask(config)

    def skeleton(self, header: dict[str, Any]) -> "InverseNetwork":
        """The network that the header of a weights file describes, with arbitrary parameters."""
        import jax

        from airscene.inverse.model import InverseNetwork
        from airscene.inverse.problem import Problem

        config = from_dict(NetworkConfig, header["model"])
        problem = from_dict(Problem, header["problem"])
        usual = jax.numpy.zeros((config.input_size, config.input_size, config.channels))
        return InverseNetwork(problem, config, usual, jax.random.key(0))

    def predictor(
        self, model: "InverseNetwork", note: dict[str, Any] | None = None
    ) -> "InversePredictor":
        """The predictor: images in, `Layout`s out."""
        from airscene.inverse.predictor import InversePredictor

        return InversePredictor(model, note)

    def evaluator(self, predictor: "InversePredictor", question: Question) -> "LayoutEvaluator":
        """The evaluation on rendered held-out scenes."""
        from airscene.inverse.evaluation import LayoutEvaluator

        return LayoutEvaluator(predictor, question)

    def measures(self, predictor: "InversePredictor") -> Measures:
        """How to format presence, kinds, positions, and angles of the kinds that have one."""
        from airscene.inverse.evaluation import measures_of

        return measures_of(predictor.problem)

    def report(
        self,
        config: InverseConfig,
        rows: list[dict[str, Any]],
        predictor: "InversePredictor",
        evaluator: Any,
        evaluation: Evaluation,
    ) -> Report:
        """The report of a run: reconstructions, curves, errors."""
        from airscene.inverse.report import report

        return report(config, rows, predictor, evaluator, evaluation)  # type: ignore[arg-type]

    def compare(
        self, a: "InversePredictor", b: "InversePredictor", question: Question
    ) -> "Comparison":
        """Compare presence, kinds and positions of two models on the same scenes."""
        from airscene.inverse.comparison import compare

        return compare(a, b, question)

    def served(self, name: str, predictor: "InversePredictor", description: str) -> "Solid":
        """The model behind HTTP."""
        from airscene.inverse.served import Solid

        return Solid(name, predictor, description)
