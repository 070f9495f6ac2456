"""`--help` is short, true and the same for every command; `--help-all` leaves nothing out."""

import re
from dataclasses import dataclass
from typing import Literal

import pytest

from airscene.cli import COMMANDS, main
from airscene.commands.help import Help, help_text, options_of
from airscene.config import flat
from airscene.registry import presets

pytestmark = pytest.mark.quick

WITH_OPTIONS = [name for name in COMMANDS if name not in ("train", "reproduce", "models", "data")]
LINES = [*WITH_OPTIONS, *(f"train {name}" for name in presets()), "reproduce digits"]


def printed(words: str, capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", LINES)
def test_help_is_short_and_has_an_example(command: str, capsys) -> None:
    said = printed(f"{command} --help", capsys)
    assert said.startswith(f"usage: airscene {command}")
    assert len(said.splitlines()) <= 60
    assert f"airscene {command.split()[0]}" in said.partition("example")[2]
    for odd in ("None", "(default: )", "{", "..", "come along", "so many"):
        assert odd not in said.replace('.run(None, {"images": x})', ""), odd
    assert len(printed(f"{command} --help-all", capsys)) >= len(said)


@pytest.mark.parametrize("name", presets())
def test_every_setting_is_listed_with_its_default(name: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = " ".join(printed(f"train {name} --help-all", capsys).split())
    hidden = ("dataset", "path", "counts", "watch_counts")
    hidden = hidden if name == "folder" else ("path", "tile", "adapt", "composites", "truth")
    for setting, value in flat(presets()[name].config).items():
        if setting in hidden:
            assert f"--{setting.replace('_', '-')} " not in said
            continue
        option = f"--{setting.replace('_', '-')}"
        assert re.search(rf"{option}[ ,]", said), setting
        chosen = name == "folder" and setting in presets()[name].recorded
        if isinstance(value, int) and not isinstance(value, bool) and not chosen:
            default = re.search(rf"{option} N .*?default: ([^)]*)\)", said)
            assert default and default[1] == str(value), setting


def test_folders_have_a_path_and_defaults_that_depend_on_the_pictures(capsys) -> None:
    said = printed("train folder --help", capsys)
    assert said.startswith("usage: airscene train folder PATH [options]")
    assert "chosen from the pictures" in " ".join(said.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("trian digits", "no command 'trian'; did you mean train?"),
        ("train digit", "no preset 'digit'; did you mean digits?"),
        ("train digits --seed-s 3", "no option --seed-s; did you mean --seeds?"),
        ("infer digit x.png", "no model 'digit'; did you mean digits?"),
        ("infer zzz x.png", "no model 'zzz'; it is neither a file nor a run folder"),
        ("reproduce object", "no result 'object'; did you mean objects?"),
        ("train digits --estimator nvul", "did you mean nvil?"),
        ("train digits --steps ten", "--steps must be a whole number, not 'ten'"),
        ("train digits --learning-rate fast", "--learning-rate must be a number, not 'fast'"),
        ("infer digits x.png --format xml", "--format must be csv, jsonl or parquet, not 'xml'"),
        ("infer digits x.png --max-objects two", "--max-objects must be a whole number, not 'two'"),
        ("eval digits --counts 0,x", "--counts must be a list such as 0,1,3, not '0,x'"),
        ("train digits --devices all", "--devices must be a whole number or auto, not 'all'"),
        ("train digits --labels 2", "--labels must be between 0 and 1, not 2"),
        ("train digits --steps", "--steps needs a value"),
        ("train digits more", "unexpected argument: more"),
        ("train digits more words", "unexpected arguments: more, words"),
        ("compare digits", "missing argument: B"),
    ],
)
def test_mistakes_are_explained_in_one_line(command: str, message: str, capsys) -> None:
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@dataclass
class Inner:
    size: float = 1.5
    """A size (0: none)."""
    width: float = 2.5
    """A width (in metres)."""
    sharp: bool = False
    """Whether it is sharp."""


@dataclass
class Outer:
    inner: Inner
    word: Literal["a", "b"] | None = None
    """A letter."""
    numbers: tuple[int, ...] = (1, 2)
    """Some numbers."""
    loud: bool = False
    """Print more."""


def test_what_each_type_looks_like(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    about = Help("Does it.", ("do it",), {"THIS": "What to do."}, common=("word", "size", "width"))
    options = list(options_of(Outer, Outer(Inner())))
    assert help_text("airscene do", about, options, everything=False).splitlines() == [
        "usage: airscene do THIS [options]",
        "",
        "Does it.",
        "",
        "arguments:",
        "  THIS                      What to do.",
        "",
        "options:",
        "  --word a|b                A letter.",
        "",
        "inner:",
        "  --size X                  A size (0: none; default: 1.5).",
        "  --width X                 A width (in metres) (default: 2.5).",
        "",
        "3 more options: airscene do --help-all",
        "",
        "example:",
        "  airscene do it",
    ]
    rest = help_text("airscene do", about, options, everything=True)
    assert "  --numbers N,N,…           Some numbers (default: 1,2)." in rest
    assert "  --loud                    Print more.\n" in rest
    assert "  --sharp, --no-sharp       Whether it is sharp (default: off)." in rest
    assert "more options" not in rest


def test_a_command_without_options_has_none_in_its_usage(capsys) -> None:
    assert printed("report --help", capsys).startswith("usage: airscene report RUN\n")
