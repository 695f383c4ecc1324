"""The loss by chunks of the built-in recipe: what it needs, beside what all logits at once need."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.recipe.chunks import chunk_tokens
from allpass.symbolic.case import Case
from app.core.memory import MODELS, Architecture, Peak, Training, architecture_of, estimate, peak_of
from app.core.memory.predict import _chunk
from tests.core.memory.test_properties import models, trainings
from tests.core.memory.test_symbolic import SEEN, SHAPES

GIB = 1 << 30
STEPS = Path(__file__).with_name("chunked_steps.py")  # not imported: it changes torch for good
# Four times as many tokens as a chunk has, and a vocabulary that decides what a step needs.
_LARGE = {"vocab_size": 65536}
_MORE = {"max_position_embeddings": 2048}


def _case(family: str, **given: Any) -> Case:
    attention = "eager" if family == "gemma2" else "flash"  # transformers has no other for its capped scores
    usual = {"micro_batch": 4, "sequence": 512, "attention": attention, "method": "lora", "checkpointing": True}
    return Case(config=SHAPES[family] | _LARGE | {"model_type": family}, **(usual | given))


CASES = {
    **{family: _case(family) for family in ("llama", "gemma2", "granite", "phi", "falcon", "gpt2", "mixtral")},
    "one chunk": _case("llama", micro_batch=1, sequence=400),
    "whole": _case("llama", method="full", checkpointing=False),
    "whole, tied": _case("gemma", method="full", checkpointing=False),
    "autocast": _case("llama", method="full", precision="amp_bf16", optimizer="adamw_fused"),
    "autocast, tied and capped": _case("gemma2", method="full", precision="amp_bf16", optimizer="adamw_fused"),
    "four bits": _case("llama", method="qlora", quantisation="nf4_dq", autocast=True),
    "wide": _case("llama", precision="fp32"),
    "accumulating": _case("llama", method="full", accumulates=True),
}


def _training(case: Case) -> Training:
    return Training(
        method=case.method,  # type: ignore[arg-type]  # a word from a table
        batch=case.micro_batch,
        sequence=case.sequence,
        precision=case.precision,  # type: ignore[arg-type]  # a word from a table
        autocast=case.autocast,
        optimizer=case.optimizer,  # type: ignore[arg-type]  # a word from a table
        checkpointing=case.checkpointing,
        attention=case.attention,  # type: ignore[arg-type]  # a word from a table
        quantisation=case.quantisation,  # type: ignore[arg-type]  # a word from a table
        accumulation=2 if case.accumulates else 1,
        loss="recomputed",
    )


@cache
def _ran() -> dict[str, dict[str, Any]]:
    """All of them, in one process of their own."""
    asked = json.dumps([case.as_json() for case in CASES.values()])
    command = [sys.executable, "-W", "ignore", str(STEPS)]
    told = subprocess.run(command, input=asked, capture_output=True, text=True, check=True, timeout=400)
    return dict(zip(CASES, json.loads(told.stdout.splitlines()[-1]), strict=True))


@pytest.mark.training
@pytest.mark.parametrize("name", CASES)
def test_the_tables_agree_with_what_the_trainer_allocates(name: str) -> None:
    """Its own loss on the real modules: each phase within two percent, and none above what is allowed for."""
    seen, predicted = _ran()[name], peak_of(architecture_of(CASES[name].config), _training(CASES[name]), SEEN)
    for phase in ("forward", "backward", "optimizer"):
        assert getattr(predicted, phase) == pytest.approx(seen[f"{phase}_bytes"], rel=0.02), phase
    most = max(seen[f"{phase}_bytes"] for phase in ("forward", "backward", "optimizer"))
    assert most <= estimate(architecture_of(CASES[name].config), _training(CASES[name]), SEEN).allocated.high


def _peaks(name: str, **told: Any) -> tuple[Peak, Peak]:
    """Of all logits at once, and by chunks."""
    usual: dict[str, Any] = {"method": "lora", "batch": 4, "sequence": 1024, "checkpointing": True}
    training = Training(**{**usual, "narrow_adapters": True, **told})
    at_once, by_chunks = (peak_of(MODELS[name], replace(training, loss=loss)) for loss in ("full", "recomputed"))
    return at_once, by_chunks


@pytest.mark.parametrize(
    ("name", "told", "at_once_gib", "by_chunks_gib"),
    [
        ("llama-3.2-1b", {}, 8.60, 3.48),
        ("llama-3-8b", {}, 22.38, 17.37),
        ("llama-3-8b", {"method": "qlora", "quantisation": "nf4_dq", "autocast": True}, 12.72, 7.74),
        ("qwen2.5-0.5b", {}, 8.17, 2.09),
        ("gemma-2-2b", {}, 19.28, 7.34),
        ("gpt2", {"checkpointing": False}, 4.63, 2.71),
        ("llama-3.2-1b", {"batch": 1, "sequence": 512}, 3.21, 3.22),
    ],
)
def test_what_large_vocabularies_no_longer_cost(
    name: str, told: dict[str, Any], at_once_gib: float, by_chunks_gib: float
) -> None:
    """A model whose logits were most of a step trains on a GPU of half the memory, or less; of few tokens nothing
    changes."""
    at_once, by_chunks = _peaks(name, **told)
    assert at_once.allocated / GIB == pytest.approx(at_once_gib, abs=0.05)
    assert by_chunks.allocated / GIB == pytest.approx(by_chunks_gib, abs=0.05)
    assert by_chunks.resident == at_once.resident


def test_a_further_token_costs_no_logits() -> None:
    """Beyond a chunk what grows is what the layers keep."""
    model = MODELS["llama-3.2-1b"]
    few, many = (_peaks("llama-3.2-1b", sequence=tokens)[1] for tokens in (1024, 2048))
    a_token = (many.backward - few.backward) / (4 * 1024)
    assert 0 < a_token < 2 * model.vocab
    few, many = (_peaks("llama-3.2-1b", sequence=tokens)[0] for tokens in (1024, 2048))
    assert (many.backward - few.backward) / (4 * 1024) > 10 * model.vocab


@given(st.integers(1, 2_000_000), st.integers(1, 1_000_000))
def test_the_prediction_has_the_trainers_chunks(vocabulary: int, tokens: int) -> None:
    """What is reserved for is what is computed."""
    assert _chunk(tokens, "recomputed", vocabulary, 1024) == min(tokens, chunk_tokens(vocabulary))


@settings(max_examples=40, deadline=None)
@given(models, trainings(), st.sampled_from(["batch", "sequence", "rank"]), st.integers(1, 64))
def test_more_never_needs_less(model: Architecture, training: Training, what: str, more: int) -> None:
    """Also across the border of a chunk."""
    training = replace(training, loss="recomputed")
    grown = getattr(training, what) + more
    grown = min(grown, 512) if what == "sequence" else grown
    larger = replace(training, **{what: max(grown, getattr(training, what))})
    assert peak_of(model, larger).allocated >= peak_of(model, training).allocated


@settings(max_examples=60, deadline=None)
@given(models, trainings())
def test_it_hardly_needs_more_than_all_logits_at_once(model: Architecture, training: Training) -> None:
    """But for one more gradient of the head, where that is trained, and some hidden states."""
    at_once = peak_of(model, replace(training, loss="full")).allocated
    by_chunks = peak_of(model, replace(training, loss="recomputed")).allocated
    head = 4 * model.vocab * model.hidden if training.method == "full" else 0
    states = 4 * 4 * training.batch * training.sequence * model.hidden
    narrow = 4 * min(training.batch * training.sequence, chunk_tokens(model.vocab)) * model.vocab
    assert by_chunks <= at_once + head + states + narrow
