"""`allpass example`: what the guides speak of is had by one command, in any folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".csv", ".json"})


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def allpass(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["example", *words])


def test_all_are_listed_and_say_what_they_are() -> None:
    """A new file under examples is listed by itself, with the first sentence that it says of itself."""
    listed = json.loads(allpass("--json").stdout)
    assert [line.split()[0] for line in allpass().stdout.splitlines()] == ["NAME", *NAMES]
    assert [one["name"] for one in listed] == NAMES
    assert all(one["about"].endswith(".") or one["about"].endswith("`.") for one in listed)


def test_one_is_written_as_it_is(tmp_path: Path) -> None:
    """To the byte, also without its ending, and again where it is already."""
    for words in (("by_hand.py",), ("by_hand",)):
        assert allpass(*words).exit_code == 0
        assert (tmp_path / "by_hand.py").read_bytes() == (EXAMPLES / "by_hand.py").read_bytes()
    assert allpass(*NAMES, "--to", "all").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == NAMES


def test_work_of_ones_own_is_not_written_over(tmp_path: Path) -> None:
    """A file of that name stays, and none of the others is written."""
    (tmp_path / "train.py").write_text("mine")
    failed = allpass("by_hand.py", "train.py")
    assert failed.exit_code == 1
    assert "train.py is there, and is not the example" in failed.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("train.py", "mine")]


@pytest.mark.parametrize("name", ["by_hnad.py", "../pyproject.toml", "README.md", "/etc/passwd", ""])
def test_what_is_none_is_refused(name: str, tmp_path: Path) -> None:
    """A name is that of an example, and no path; a near one is proposed."""
    failed = allpass(name)
    assert failed.exit_code == 2
    assert f"there is no example {name!r}" in failed.stderr
    assert ("allpass example by_hand.py" in failed.stderr) == (name == "by_hnad.py")
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_and_an_image_take_them_along() -> None:
    """The folder is beside the client in the repository: what builds elsewhere has to name it."""
    root = EXAMPLES.parent
    assert '"../examples" = "allpass/examples"' in (root / "sdk" / "pyproject.toml").read_text()
    steps = (root / "Dockerfile").read_text().splitlines()
    assert steps.index("COPY examples examples") < next(
        i for i, step in enumerate(steps) if "pip install --no-cache-dir --no-deps ./sdk" in step
    )
    assert "!examples" in (root / ".dockerignore").read_text().splitlines()
