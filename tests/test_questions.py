"""A stranger finds where things are: the twenty questions have answers, and each of them leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture" / "questions.md"
QUESTIONS = re.split(r"^\d+\. ", PAGE.read_text(), flags=re.MULTILINE)[1:]
_ANSWER = re.compile(r"`([\w/]+\.py)`\s+\(`(\w+)`\)")


def test_there_are_twenty() -> None:
    """Each is a question, and no two are the same."""
    asked = [question.split("**")[1] for question in QUESTIONS]
    assert len(set(asked)) == 20
    assert all(question.endswith("?") for question in asked)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.split("**")[1])
def test_an_answer_leads_to_code_and_to_a_test(question: str) -> None:
    """Every file is there and has that name; one at least is a test."""
    answers = _ANSWER.findall(question)
    assert any(path.startswith("tests/") for path, _ in answers)
    assert sum(not path.startswith("tests/") for path, _ in answers) >= 2
    for path, name in answers:
        text = (ROOT / path).read_text()
        assert re.search(rf"^\s*(?:async )?(?:def|class) {name}\b|^{name}\b.*=", text, re.MULTILINE), (path, name)


def test_the_architecture_leads_to_the_questions_and_to_every_topic() -> None:
    """One page is held in mind; the others are a click away."""
    told = (ROOT / "ARCHITECTURE.md").read_text()
    pages = [path.name for path in PAGE.parent.glob("*.md")]
    assert [name for name in pages if f"(docs/architecture/{name})" not in told] == []
    assert len(told.splitlines()) < 200


def test_files_named_in_the_architecture_exist() -> None:
    """Under their whole path, or by the end of it where the sentence says which folder is meant."""
    folders = ("app", "workers", "providers", "sdk", "tests", "benchmarks", "scripts", "migrations")
    known = [path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for page in (ROOT / "ARCHITECTURE.md", *PAGE.parent.glob("*.md")):
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text()):
            assert any(path == name or path.endswith(f"/{name}") for path in known), (page.name, name)
