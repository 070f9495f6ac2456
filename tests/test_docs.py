"""The documentation says what is so: code parses or runs, commands exist, links lead somewhere."""

import ast
import csv
import json
import re
import runpy
import shlex
import subprocess
import sys
from importlib import import_module, util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import airscene
from airscene import cli, models
from airscene.air.config import ModelConfig
from airscene.air.glimpses import Glimpse
from airscene.errors import AirsceneError
from airscene.registry import preset
from airscene.renderers import Slots
from airscene.renderers.host import draw

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [page.name for page in PAGES]
FENCE = re.compile(
    r"(?P<marked><!-- runs -->\n)?^```(?: \{ \.)?(?P<kind>\w*)(?: \})?\n(?P<body>.*?)^```$",
    re.M | re.S,
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SNIPPET = re.compile(r'--8<-- "([^"]+)"')


class Parsed(Exception):
    """The options of a command were read, and its work would begin."""


def fences(page: Path, kinds: tuple[str, ...]) -> list[tuple[str, bool]]:
    found = FENCE.finditer(page.read_text())
    return [(f["body"], f["marked"] is not None) for f in found if f["kind"] in kinds]


def python_blocks(page: Path) -> list[tuple[str, bool]]:
    """Code, files that are shown included, and whether it is said to run."""
    return [
        (SNIPPET.sub(lambda shown: (ROOT / shown[1]).read_text(), body), marked)
        for body, marked in fences(page, ("python",))
    ]


def commands(page: Path) -> list[list[str]]:
    """The words of every `airscene ...`: in fenced or indented blocks, and between backticks."""
    text = page.read_text()
    blocks = "".join(body for body, _ in fences(page, ("sh",))).replace("\\\n", " ")
    prose = FENCE.sub("", text)
    lines = [*blocks.splitlines(), *re.findall(r"^ {4}(\S.*)$", prose, re.M)]
    lines += [" ".join(span.split()) for span in re.findall(r"`(airscene [^`]+)`", prose)]
    parts = [part.strip() for line in lines for part in re.split(r"[|;>]|&&", line)]
    said = [part for part in parts if part.startswith("airscene ") and "..." not in part]
    return [shlex.split(part, comments=True)[1:] for part in said]


@pytest.fixture
def read_only(monkeypatch):
    """Reads the words of a command as the command does, and ends there."""

    def stopping(parse: Any) -> Any:
        def parse_and_stop(*args, **kwargs):
            raise Parsed(parse(*args, **kwargs))

        return parse_and_stop

    for name in {module for module, _ in cli.COMMANDS.values()}:
        module = import_module(f"airscene.commands.{name}")
        if hasattr(module, "parse"):
            monkeypatch.setattr(module, "parse", stopping(module.parse))
        if name == "train":
            monkeypatch.setattr(module, "_looked_at", lambda path, words: preset("folder"))

    def read(words: list[str]) -> None:
        if words[0] not in cli.COMMANDS:
            raise AirsceneError(f"no command {words[0]!r}")
        if len(words) == 1 and words[0] != "demo":  # the name alone: a way to speak of it
            return
        module, function = cli.COMMANDS[words[0]]
        with pytest.raises((Parsed, SystemExit)) as end:  # --help ends the program
            getattr(import_module(f"airscene.commands.{module}"), function)(words[1:])
        assert not isinstance(end.value, SystemExit) or not end.value.code

    return read


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "page", "exec"), names)
    return names


def examples(name: str) -> Any:
    spec = util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_on_the_page_parses_and_names_what_there_is(page):
    for code, _ in python_blocks(page):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                known = node.value.id != "airscene" or node.attr in airscene.__all__
                assert known, f"{page.name}: airscene.{node.attr}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_what_is_said_to_run_runs(page):
    blocks = [code for code, marked in python_blocks(page) if marked]
    assert len(blocks) == page.read_text().count("<!-- runs -->")
    for code in blocks:
        run(code)


def test_the_renderers_of_the_page_draw():
    blocks = [code for code, marked in python_blocks(ROOT / "docs" / "renderer.md") if marked]
    disc, engine = (run(code)[name] for code, name in zip(blocks, ("Disc", "Engine"), strict=True))
    pose = np.array([[[0.3, -0.2]], [[0.0, 0.0]]], np.float32)
    present = np.array([[1.0], [0.0]], np.float32)
    slots = Slots(present, np.zeros((2, 1), np.int32), pose)
    drawn = draw(disc(), slots)
    assert drawn.shape == (2, 32, 32, 1) and drawn[1].max() == 0
    y, x = np.unravel_index(np.argmax(drawn[0, ..., 0]), (32, 32))
    np.testing.assert_allclose(np.array([x, y]) / 31 * 2 - 1, [0.3, -0.2], atol=0.05)
    grey = draw(engine(), slots)
    np.testing.assert_allclose(grey[:, 16, 16, 0], [0.3, 0.0])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_on_the_page_exist_with_their_options(page, read_only):
    examples("glimpse")  # registers its part, as AIRSCENE_PLUGINS would
    for words in commands(page):
        try:
            read_only(words)
        except AirsceneError as error:
            pytest.fail(f"{page.name}: airscene {' '.join(words)}: {error}")


def test_there_are_commands_and_code_to_look_at():
    shown = [code for page in PAGES for code, _ in python_blocks(page)]
    assert (ROOT / "examples" / "clock.py").read_text() in "".join(shown)
    assert sum(len(commands(page)) for page in PAGES) > 50
    assert ["infer", "digits", "*.png", "--overlay", "seen"] in commands(ROOT / "README.md")


@pytest.mark.parametrize(
    "line",
    [
        "guess digits picture.png",
        "infer digits picture.png --overlays out",
        "infer digits picture.png --format xml",
        "train digits --steps many",
        "train nothing",
        "train folder PATH --tiles 3",
        "reproduce everything",
        "demo --port",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(line, read_only):
    with pytest.raises(AirsceneError):
        read_only(line.split())


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_pictures_lead_to_files(page):
    text = FENCE.sub("", page.read_text())
    targets = [t for t in LINK.findall(text) if not t.startswith(("http:", "https:", "#"))]
    for target in (t.partition("#")[0] for t in targets):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
    for shown in SNIPPET.findall(page.read_text()):
        assert (ROOT / shown).is_file(), f"{page.name}: {shown}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_scripts_and_targets_of_make_exist(page):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    for target in re.findall(r"(?:`|^ {4}|^)make (\w+)", page.read_text(), re.M):
        assert target in targets, f"{page.name}: make {target}"
    for script in re.findall(r"\bpython (\S+\.py)", page.read_text()):
        assert (ROOT / script).is_file(), f"{page.name}: {script}"


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(listed) == sorted(NAMES[1:])


def test_every_public_name_is_on_the_page_of_names():
    shown = re.findall(r"^::: airscene\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(shown) == sorted(set(airscene.__all__) - {"__version__"})


def test_nothing_is_fetched_from_elsewhere():
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "http" not in settings and "http" not in (ROOT / "docs" / "style.css").read_text()


def test_the_glimpse_of_the_example_is_one(tiny):
    mine = examples("glimpse").Patterns(tiny, jax.random.key(0))
    assert isinstance(mine, Glimpse)
    x_att = jnp.asarray(np.random.default_rng(0).uniform(size=(4, 4, 1)), jnp.float32)
    what, z_what, y_att = mine.encode(x_att, jnp.ones(tiny.codes))
    np.testing.assert_allclose(z_what, what.mean + what.sd, rtol=1e-5)
    np.testing.assert_allclose(mine.decode(z_what), y_att, atol=1e-6)
    assert y_att.shape == x_att.shape and y_att.min() > 0 and y_att.max() < 1


@pytest.mark.long
def test_the_glimpse_example_trains(monkeypatch):
    example, made = examples("glimpse"), []
    init = example.Patterns.__init__

    def counted(self, config: ModelConfig, key: Any) -> None:
        made.append(config.codes)
        init(self, config, key)

    monkeypatch.setattr(example.Patterns, "__init__", counted)
    small = {"hidden": 8, "mlp": 8, "codes": 4, "window": 8, "batch": 4, "progress": False}
    assert 0 <= example.main(1, scenes=60, max_objects=1, **small) <= 1
    assert set(made) == {4}


@pytest.mark.long
def test_the_glimpse_example_counts_as_its_page_says(optimised):
    done = subprocess.run(
        [sys.executable, "examples/glimpse.py"],
        cwd=ROOT,
        env=optimised,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    percent = re.search(r"([0-9.]+)% of counts correct", done.stdout)
    assert percent and float(percent[1]) >= 98, done.stdout


def test_the_edit_example_moves_and_removes(tmp_path):
    assert examples("edit").main(tmp_path / "edited.png") == [2, 2, 1]
    both = tmp_path / "edited.png", ROOT / "docs" / "front" / "edited.png"
    made, shown = (np.asarray(Image.open(path).convert("L"), float) for path in both)
    assert made.shape == shown.shape and np.abs(made - shown).mean() < 2


@pytest.mark.long
def test_the_cells_example_counts_as_its_page_says(optimised, tmp_path):
    def run(*words):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=optimised, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    airscene_ = ("-m", "airscene.cli")
    run(str(ROOT / "examples" / "cells.py"), "cells")
    run(*airscene_, "train", "folder", "cells/train", "--out", "run")
    run(*airscene_, "eval", "run", "--data", "cells/test", "--out", "test")
    assert json.loads((tmp_path / "test" / "result.json").read_text())["count_accuracy"] >= 0.99
    run(*airscene_, "infer", "run", "cells/slides", "--whole", "--format", "csv", "--out", "s.csv")
    rows = csv.DictReader((tmp_path / "s.csv").read_text().splitlines())
    found = [int(row["count"]) for row in rows]
    claimed = re.search(
        r"with `--whole` \| ([0-9 ]+):", (ROOT / "docs" / "pictures.md").read_text()
    )
    assert claimed
    truth = [int(n) for n in claimed[1].split()]
    np.testing.assert_allclose(found, truth, atol=1)


CARD = {
    "counts": ("count_accuracy", 0.3),
    "presence": ("presence_accuracy", 0.3),
    "kinds": ("identity_accuracy", 0.3),
    "box recall": ("box_recall", 0.3),
    "ELBO": ("elbo", 1.5),
    "count error": ("count_error", 0.3),
}
"""Words of the table of bundled models, keys of result.json, and what rounding may change."""


@pytest.mark.long
@pytest.mark.parametrize("name", models.bundled())
def test_a_bundled_model_is_as_good_as_its_card_says(name, optimised, tmp_path, mujoco):
    card = (ROOT / "src" / "airscene" / "weights" / "README.md").read_text()
    (row,) = (line for line in card.splitlines() if line.startswith(f"| `{name}.safetensors`"))
    claims = row.split("|")[4].partition(";")[0]
    words = [sys.executable, "-m", "airscene.cli", "eval", name, "--out", str(tmp_path)]
    if name == "cells":  # its training pictures are not included
        write = runpy.run_path(str(ROOT / "examples" / "cells.py"))["write"]
        write(tmp_path / "slides", 12, range(70, 91), (600,), seed=2, counted=True)
        words += ["--data", str(tmp_path / "slides")]
    done = subprocess.run(words, env=optimised, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result, found = json.loads((tmp_path / "result.json").read_text()), {}
    for word, (key, slack) in CARD.items():
        claimed = re.search(rf"\b{word} ([0-9.,]+[0-9])(%?)", claims)
        if claimed:
            scale = 100 if claimed[2] else 1
            value = float(claimed[1].replace(",", ""))
            found[word] = (value, scale * result[key])
            assert abs(value - scale * result[key]) <= slack, found
    assert found, claims
    print(f"{name}: {found}")
