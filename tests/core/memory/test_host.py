"""What the built-in recipe needs of a machine's memory beside its GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.memory.catalogue import MODELS
from app.core.memory.host import PROCESS_BYTES, host_bytes
from app.core.memory.parameters import parameters_of
from app.core.memory.training import Training

GB = 1_000_000_000
FULL = Training("full", 1, 512, precision="amp_bf16")
LORA = Training("lora", 1, 512)
QLORA = Training("qlora", 1, 512, quantisation="nf4_dq", autocast=True)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3-8b", "llama-3-70b"])
def test_a_full_fine_tuning_needs_no_host_as_large_as_its_state(name: str) -> None:
    """Weights, two states and the best weights in 4 bytes each: of 8B some 128 GB, which a save copied twice."""
    state = parameters_of(MODELS[name]).total * 4 * 4
    needed = host_bytes(MODELS[name], FULL)
    assert needed < 25 * GB
    assert needed < max(state / 5, 14 * GB)


def test_what_is_merged_is_put_together_in_memory() -> None:
    """All base weights in 16 bits, and a file of them; of 4-bit weights too, which are read anew for that."""
    model = MODELS["llama-3-8b"]
    weights = parameters_of(model).total * 2
    for training in (LORA, QLORA):
        assert host_bytes(model, training, merges=True) > weights + PROCESS_BYTES
        assert host_bytes(model, training) < weights / 2
    assert host_bytes(model, FULL, merges=True) == host_bytes(model, FULL)


@given(st.sampled_from(sorted(MODELS)), st.sampled_from([FULL, LORA, QLORA]), st.booleans())
def test_it_is_never_less_than_a_process_and_its_largest_tensor(name: str, training: Training, merges: bool) -> None:
    model = MODELS[name]
    if model.form.mixture:
        return
    needed = host_bytes(model, training, merges=merges)
    largest = model.vocab * model.hidden * training.weight_item
    assert needed >= PROCESS_BYTES + largest
    assert needed >= host_bytes(model, training)
    assert isinstance(needed, int)
