"""Programs: three layers on the tape stand for any number, and dropped rows never decide."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.memory import MODELS, PROFILES, Training
from app.core.memory import program as programs
from app.core.memory.block import Setting
from app.core.memory.program import Forms, Step, compiled, leading

LAYERS = 7
KINDS = {
    "full": Training(method="full", batch=2, sequence=64, precision="amp_bf16"),
    "full-checkpointed": Training(method="full", batch=2, sequence=64, checkpointing=True),
    "lora": Training(method="lora", batch=2, sequence=64, adapter_dropout=0.1),
    "lora-eager": Training(method="lora", batch=2, sequence=64, attention="eager", checkpointing=True),
    "qlora": Training(method="qlora", batch=2, sequence=64, quantisation="nf4", autocast=True, checkpointing=True),
    "lora-narrow": Training(method="lora", batch=2, sequence=64, narrow_adapters=True),
    "qlora-narrow": Training(
        method="qlora", batch=2, sequence=64, quantisation="nf4", autocast=True, narrow_adapters=True
    ),
    "by-chunks": Training(method="full", batch=2, sequence=64, precision="amp_bf16", loss="recomputed"),
    "lora-by-chunks": Training(method="lora", batch=2, sequence=64, checkpointing=True, loss="recomputed"),
    "sharded": Training(method="full", batch=2, sequence=64, gpus=2, sharding="fsdp"),
}


def _peaks(setting: Setting) -> list[float]:
    """The largest moment of each phase, in bytes."""
    program = compiled(setting)
    size = setting.model.sizes() | {"b": 2, "s": 64, "t": 128, "r": 16, "c": 16}
    values = np.array([math.prod([size[name] for name in dims]) for dims in program.slots], dtype=np.float64)
    whole = np.concatenate((values, (setting.model.layers - program.layers) * values))
    return [float((forms @ whole).max()) for forms in (program.forward, program.turn, program.backward)]


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gemma-2-2b", "gpt2", "bert-base", "pythia-1b", "mixtral-8x7b"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_three_layers_stand_for_any_number(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run whole or from three of its layers, a model has the same peaks, to the byte."""
    model, training = MODELS[name].with_layers(LAYERS), KINDS[kind]
    setting = Setting(model, training, PROFILES["symbolic-1"], training.names_of(model))
    short = _peaks(setting)
    monkeypatch.setattr(programs, "SAMPLE_LAYERS", LAYERS)
    assert compiled(setting).layers == LAYERS
    assert short == pytest.approx(_peaks(setting), abs=1)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_nothing_is_left_after_a_step(kind: str) -> None:
    """When a step has been played back, only gradients, masks and angles are still alive: no activation leaks."""
    model, training = MODELS["llama-3.2-1b"].with_layers(3), KINDS[kind]
    step = Step(Setting(model, training, PROFILES["transformers-5"], training.names_of(model)))
    step.run()
    left = {dims: bytes_ for dims, slot in step.tape.slots.items() if (bytes_ := step.tape.live[slot])}
    gradients = {tuple(sorted(weight.dims)) for weight in step.tape.weights if weight.grad is not None}
    assert set(left) - gradients <= {("d", "s"), ("b", "s", "s"), ()}


tables = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.integers(-3, 9), min_size=width, max_size=width), min_size=1, max_size=30)
)


@settings(max_examples=100, deadline=None)
@given(tables, st.data())
def test_dropped_rows_never_decide(rows: list[list[int]], data: st.DataObject) -> None:
    """For sizes that are not negative, the largest of the kept rows is the largest of all."""
    table: Forms = np.array(rows, dtype=np.float64)
    kept = leading(table)
    sizes = np.array(data.draw(st.lists(st.integers(0, 1000), min_size=table.shape[1], max_size=table.shape[1])))
    assert (kept @ sizes).max() == (table @ sizes).max()
    assert len(kept) <= len(np.unique(table, axis=0))
