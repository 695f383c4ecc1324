"""`allpass plan --exact`: real symbolic runs of a small model, kept, and what is told where they cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.symbolic.ask import CannotRunError, run_cases
from allpass.symbolic.case import Case
from allpass.symbolic.kept import Kept
from tests.sdk.fake_service import KEY, FakeService, served
from tests.sdk.test_plan import FOUND, VAST, option

TINY = {
    "model_type": "olmo2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
}  # fmt: skip


@pytest.fixture
def live(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    service.plan = deepcopy(FOUND) | {"config": TINY}
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    usual = ("--model", "llama-3-8b", "--method", "full", "--batch", "16", "--seq", "64", "--exact")
    return CliRunner().invoke(cli.app, ["plan", *usual, *words])


@pytest.mark.training
def test_the_layouts_that_matter_are_run_and_told(live: FakeService, tmp_path: Path) -> None:
    """The one that would be taken and one near to its GPU's memory run here; the second request tells their peaks; the
    same question again needs no run."""
    near: dict[str, Any] = option("L4", 24, 20.0, "tight", VAST) | {"near": True}
    near["layout"] = near["layout"] | {"micro_batch": 1, "accumulation": 16, "checkpointing": False}
    live.plan["options"].append(near)
    first = call()
    assert first.exit_code == 0, first.output
    plain, told = live.planned
    assert plain.exact is None
    assert told.exact is not None
    peaks = {(peak.micro_batch, peak.checkpointing, peak.accumulates): peak for peak in told.exact.peaks}
    assert set(peaks) == {(2, True, True), (1, False, True)}
    weights = 2 * told.exact.parameters
    assert all(weights < peak.optimizer_bytes < peak.backward_bytes < 100 * weights for peak in peaks.values())
    assert {"torch", "transformers"} <= set(told.exact.versions)
    kept = list((tmp_path / "cache" / "allpass" / "symbolic").iterdir())
    assert len(kept) == 2
    for path in kept:  # so that it shows where the answer comes from
        path.write_text(json.dumps(json.loads(path.read_text()) | {"parameters": 7}))
    assert call().exit_code == 0
    assert live.planned[-1].exact == told.exact.model_copy(update={"parameters": 7})


def test_an_edge_is_told(live: FakeService) -> None:
    """Where the tables are not sure, the plan says that a symbolic run would decide."""
    live.plan["options"][0]["near"] = True
    result = CliRunner().invoke(cli.app, ["plan", "--model", "llama-3-8b"])
    assert "so near to its memory that a symbolic run would decide (--exact): A100" in result.stdout


def test_both_numbers_are_told(live: FakeService) -> None:
    """What a symbolic run decided stands beside what the tables say."""
    tables = {"low": 20_000_000_000, "expected": 21_000_000_000, "high": 22_000_000_000}
    live.plan["options"][0] |= {"exact": True, "tables": tables}
    live.plan["options"][1] |= {"exact": True, "tables": tables, "raised": True}
    facts = CliRunner().invoke(cli.app, ["plan", "--model", "llama-3-8b"]).stdout
    assert "A100 2x8 ckpt: 58.0 GB allocated by a symbolic run, 21.0 GB by the tables" in facts
    assert "T4 2x8 ckpt: the symbolic run says less than the tables expect at least, 20.0 GB" in facts


def test_a_python_without_torch_is_told(live: FakeService, tmp_path: Path) -> None:
    """Which library is missing, and how to name the Python that has it; nothing else was asked."""
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\necho \'{"python": "3.11"}\'\n')
    bare.chmod(0o755)
    result = call("--python", str(bare))
    assert result.exit_code == 1
    assert f"{bare} has no torch and no transformers" in result.stderr
    assert "--python" in result.stderr
    assert call("--python", str(tmp_path / "nothing")).exit_code == 1


def test_what_a_run_does_not_know_is_refused_by_its_field(live: FakeService) -> None:
    """Before any process is started."""
    for words, told in ((("--optimizer", "adafactor"), "optimizer is 'adafactor'"), (("--loss", "fused"), "loss is")):
        result = call(*words)
        assert (result.exit_code, told in result.stderr) == (2, True), result.stderr


def test_a_python_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    """A run that takes its process down takes nothing else down."""
    dying = tmp_path / "python"
    dying.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && echo \'{"torch": "9", "transformers": "9"}\' && exit\necho boom >&2; exit 3\n'
    )
    dying.chmod(0o755)
    with pytest.raises(CannotRunError, match="ended with code 3: boom"):
        run_cases([Case(TINY, 64)], python=str(dying))


def test_results_are_kept_within_their_bound(tmp_path: Path) -> None:
    """The least used go first; what was found of use stays; a damaged file is as none."""
    kept = Kept(tmp_path / "runs", most=2)
    kept.keep("a" * 64, {"n": 1})
    kept.keep("b" * 64, {"n": 2})
    for number, name in enumerate(("b" * 64, "a" * 64)):
        _touched(tmp_path / "runs" / f"{name}.json", number)
    kept.keep("c" * 64, {"n": 3})
    assert [kept.find(letter * 64) for letter in "abc"] == [{"n": 1}, None, {"n": 3}]
    (tmp_path / "runs" / f"{'a' * 64}.json").write_text("{")
    assert kept.find("a" * 64) is None


def _touched(path: Path, seconds: int) -> None:
    import os

    os.utime(path, (seconds, seconds))


def test_a_case_is_known_by_all_that_decides_it() -> None:
    """Another layout, model or library version is another result; the order of words is not."""
    versions = {"torch": "2", "transformers": "5"}
    key = Case(TINY, 64).key(versions)
    assert Case(dict(reversed(TINY.items())), 64).key(dict(reversed(versions.items()))) == key
    assert Case.from_json(Case(TINY, 64).as_json()).key(versions) == key
    others = [Case(TINY, 65), Case(TINY, 64, checkpointing=True), Case(TINY | {"vocab_size": 257}, 64)]
    keys = {key, Case(TINY, 64).key(versions | {"torch": "3"}), *(case.key(versions) for case in others)}
    assert len(keys) == 5
