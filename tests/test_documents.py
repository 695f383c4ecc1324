"""What is written is true: references are generated, shown code is the code, commands exist, links lead somewhere."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer

from allpass.cli.main import app
from tests.documents import blocks_of

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "sdk/*.md", "examples/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
GUIDES = ROOT / "docs" / "guides"
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


@pytest.fixture(scope="module")
def commands() -> dict[str, set[str]]:
    """Options by command, `sweep best` among them."""
    root: Any = typer.main.get_command(app)
    found: dict[str, set[str]] = {}

    def add(command: Any, name: str) -> None:
        found[name] = {
            "--help",
            *(
                option
                for one in command.params
                for option in (*one.opts, *one.secondary_opts)
                if option.startswith("-")
            ),
        }
        if hasattr(command, "list_commands"):
            for inner in command.list_commands(None):
                add(command.get_command(None, inner), f"{name} {inner}".strip())

    add(root, "")
    return found


@pytest.mark.parametrize("name", ["cli.md", "api.md", "python.md"])
def test_references_are_what_the_script_makes(name: str) -> None:
    """Whoever changes a command or a route runs `.venv/bin/python scripts/reference.py`."""
    made = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["FILES"][name]()
    assert (ROOT / "docs" / "reference" / name).read_text() == made


def test_the_reference_has_every_route_and_command(commands: dict[str, set[str]]) -> None:
    """Nothing is left out of the files: each command, and each route with its method."""
    from tests.api.document import named_operations

    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert [f"### `{method} {path}`" in text for method, path, _ in named_operations().values()].count(False) == 0
    told = re.findall(
        r"^### `allpass ([a-z-]+(?: [a-z-]+)?)", (ROOT / "docs/reference/cli.md").read_text(), re.MULTILINE
    )
    assert all(any(one == name or one.startswith(f"{name} ") for one in told) for name in commands if name)


def test_the_picture_is_of_the_run_that_the_guide_keeps() -> None:
    """Whoever keeps another run there calls `.venv/bin/python scripts/picture.py`."""
    script = runpy.run_path(str(ROOT / "scripts" / "picture.py"))
    drawn = (ROOT / "docs" / "demo.svg").read_text()
    assert drawn == script["picture"]()
    words = " ".join("".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ").split())
    assert "long-lora moved at step 113, 1.9 s pause" in words
    assert "yes the ledger equals the cloud's bill to the micro-dollar" in words


def test_the_picture_fetches_and_runs_nothing() -> None:
    """A page that shows it is told by nobody else, and each name it refers to is its own."""
    drawn = (ROOT / "docs" / "demo.svg").read_text()
    assert re.findall(r"<script|<image|@import|@font-face|href|\bon\w+=", drawn) == []
    assert set(re.findall(r"url\(([^)]*)\)", drawn)) and not re.findall(r"url\([^#]", drawn)


def test_the_readme_is_one_screen() -> None:
    """What, why, two commands, a picture, links: whatever is longer is a guide. Each guide is linked from there."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 45
    assert "./allpass demo " in text and "./allpass test " in text and "(docs/demo.svg)" in text
    assert [path.name for path in GUIDES.glob("*.md") if f"(docs/guides/{path.name})" not in text] == []


def test_the_index_by_task_leads_to_every_guide() -> None:
    """Whoever wants something finds its page; a guide that nobody can want is none."""
    text = (ROOT / "docs" / "README.md").read_text()
    assert [path.name for path in GUIDES.glob("*.md") if f"(guides/{path.name})" not in text] == []


@pytest.mark.parametrize(
    ("guide", "script"),
    [("your-own-script.md", "by_hand.py"), ("your-own-script.md", "three_lines.py"), ("movable.md", "movable.py")],
)
def test_the_scripts_of_the_guide_are_the_examples(guide: str, script: str) -> None:
    """The script that is shown is the file, to the letter."""
    shown = {one.text for one in blocks_of(GUIDES / guide, "python")}
    assert (ROOT / "examples" / script).read_text() in shown


def test_the_lines_for_a_trainer_are_from_the_example() -> None:
    """Every line of Python in the guide is one of the script that it links to."""
    script = (ROOT / "examples" / "train_hf.py").read_text()
    shown = blocks_of(GUIDES / "hugging-face-trainer.md", "python")
    assert len(shown) == 2
    assert [one.text for one in shown if one.text not in script] == []
    assert "callbacks=[AllpassCallback()]" in (GUIDES / "hugging-face-trainer.md").read_text()
    assert "callbacks=[AllpassCallback()]" in script


@each_document
def test_python_in_documents_parses(path: Path) -> None:
    """Each block is valid Python; a piece from the middle of a script may be indented."""
    for block in blocks_of(path, "python"):
        text = block.text
        ast.parse(f"call(\n{text}\n)" if text.startswith(" ") and text.rstrip().endswith(",") else _unindented(text))


@each_document
def test_commands_in_documents_exist(path: Path, commands: dict[str, set[str]]) -> None:
    """Each `allpass` command of a shell block is one, and has the options that it is given."""
    for block in blocks_of(path, "sh"):
        for words in _called(block.text):
            name = next((one for one in (" ".join(words[:2]), *words[:1]) if one in commands), None)
            if name is None and words[:1] in (["test"], ["check"], ["lint"], ["COMMAND"]):
                continue  # of the entry script
            assert name is not None, f"there is no command {' '.join(words)!r}"
            given = words[: words.index("--")] if "--" in words else words
            options = {one.partition("=")[0] for one in given if re.match(r"--?[a-z]", one)}
            assert options <= commands[name], f"allpass {name} has no {options - commands[name]}"


@each_document
def test_links_lead_somewhere(path: Path) -> None:
    """A relative link is a file of the repository, and its anchor a heading there."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(\s*([^)\s]+)\s*\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{target} is not there"
        if anchor and there.suffix == ".md":
            assert anchor in _anchors(there), f"{target}: there is no such heading"


def _unindented(text: str) -> str:
    import textwrap

    return textwrap.dedent(text)


def _called(text: str) -> list[list[str]]:
    """The words after `allpass` of every call in a shell text, also in `$(...)`."""
    lines = re.sub(r"\s#.*", "", re.sub(r"\\\n\s*", "", text))
    calls = re.findall(r"(?:^|\$\()(?:\./)?allpass ([^|;<>\n]*)", lines, re.MULTILINE)
    found = []
    for call in calls:
        words = shlex.split(re.sub(r"\$\([^)]*\)?|\)", "", call))
        found.append(words)
    return found


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}
