"""Networks that invert a renderer as a kind of model: where the package finds their parts."""

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

    def settled(self, config: Any) -> Any:
        """The renderer by its name, and the meshes' folder wherever the run is resumed."""
        if find_spec("mujoco") is None:
            raise AirsceneError("3D scenes need MuJoCo: pip install 'airscene[3d]'")
        from airscene.renderers import resolved

        colour = config.model.channels == 3
        require(colour, "a world is rendered in colour: channels must be 3")
        meshes = str(Path(config.meshes).resolve()) if config.meshes else ""
        return replace(config, renderer=resolved(config.renderer), meshes=meshes)

    def task(self, config: InverseConfig) -> "InverseTask":
        """Training on rendered scenes."""
        from airscene.inverse.task import InverseTask

        return InverseTask(config)

    def skeleton(self, header: dict[str, Any]) -> "InverseNetwork":
        """The network of a configuration and a problem."""
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
        """Images in, `Layout`s out."""
        from airscene.inverse.predictor import InversePredictor

        return InversePredictor(model, note)

    def evaluator(self, predictor: "InversePredictor", question: Question) -> "LayoutEvaluator":
        """Held-out scenes, rendered."""
        from airscene.inverse.evaluation import LayoutEvaluator

        return LayoutEvaluator(predictor, question)

    def measures(self, predictor: "InversePredictor") -> Measures:
        """Presence, kinds, positions and the angles of all kinds that have one."""
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
        """Images drawn again, curves, errors."""
        from airscene.inverse.report import report

        return report(config, rows, predictor, evaluator, evaluation)  # type: ignore[arg-type]

    def compare(
        self, a: "InversePredictor", b: "InversePredictor", question: Question
    ) -> "Comparison":
        """Presence, kinds and positions of two models on the same scenes."""
        from airscene.inverse.comparison import compare

        return compare(a, b, question)

    def served(self, name: str, predictor: "InversePredictor", description: str) -> "Solid":
        """Things on a table."""
        from airscene.inverse.served import Solid

        return Solid(name, predictor, description)
