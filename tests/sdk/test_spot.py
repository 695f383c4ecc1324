"""Spot jobs on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from allpass.cli import main as cli
from allpass.cli.template_options import template_of


def test_an_option_makes_a_spot_job_and_a_file_may_say_so(tmp_path: Path) -> None:
    """Without either it is guaranteed, unless its project has another default: that it says nothing is told."""
    file = tmp_path / "template.json"
    file.write_text('{"priority_class": "spot"}')
    assert template_of(None).priority_class == "guaranteed"
    assert template_of(None, spot=True).priority_class == "spot"
    assert template_of(file).priority_class == "spot"
    assert "priority_class" not in template_of(None).model_dump(exclude_unset=True)


def test_an_option_makes_a_guaranteed_job_whatever_else_is_said(tmp_path: Path) -> None:
    """It comes before the file, and is sent: the project's default has no say then."""
    file = tmp_path / "template.json"
    file.write_text('{"priority_class": "spot"}')
    for template in (template_of(file, guaranteed=True), template_of(None, guaranteed=True)):
        assert template.model_dump(exclude_unset=True) == {"priority_class": "guaranteed"}


@pytest.mark.parametrize("words", [("run", "train.py"), ("finetune", "org/model", "rows.jsonl")])
def test_both_classes_at_once_are_refused_in_one_sentence(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read or sent."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 20)
    refused = CliRunner().invoke(cli.app, [*words, "--spot", "--guaranteed"])
    assert refused.exit_code == 2
    assert "--spot and --guaranteed contradict each other" in " ".join(refused.output.split())
