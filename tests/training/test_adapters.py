"""What adapters of the built-in recipe keep for the way back, and that they learn the same for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.settings import Recipe

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
ROW = {"prompt": "1+1=", "completion": "2" * 58}  # 64 tokens, which no edition pads
PLAIN: dict[str, Any] = {"edition": 1, "lora_dropout": 0.0}
NEW: dict[str, Any] = {"edition": 2, "lora_dropout": 0.0}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.training import tiny

    made: str = tiny.llama(tmp_path_factory.mktemp("llama"))
    return made


def looked_at(llama: str, rows: Path, **settings: Any) -> tuple[Any, float, int]:
    """The gradient of one row, its loss, and the bytes that the way back keeps beside the model."""
    import torch

    from tests.training import tiny
    from workers.trainer import model, tasks
    from workers.trainer import rows as read

    folder = rows if (rows / "train.jsonl").exists() else tiny.write_rows(rows, "prompt", [ROW])
    recipe, data = Recipe.of({"model": llama, "batch_size": 1, **settings}), read.load(folder)
    prepared = model.prepare(recipe, data.labels)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():  # of adapters that do nothing yet only half have a gradient
        for name, one in sorted(prepared.model.named_parameters()):
            if "lora_B" in name:
                one.copy_(0.05 * torch.randn(one.shape, generator=draw))
    own = {one.untyped_storage().data_ptr() for one in prepared.model.parameters()}
    kept: dict[int, Any] = {}

    def keep(one: Any) -> Any:
        kept[one.untyped_storage().data_ptr()] = one.untyped_storage()
        return one

    task = tasks.load(data, recipe, prepared)
    (batch,) = task.micro_batches(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one), prepared.computing():
        loss = task.loss(prepared.model, batch).total / batch.counted
    loss.backward()
    trained = [one for one in prepared.model.parameters() if one.requires_grad]
    assert {one.dtype for one in trained} == {torch.float32}
    torch.use_deterministic_algorithms(False)
    sizes = sum(one.nbytes() for place, one in kept.items() if place not in own)
    return torch.cat([one.grad.flatten() for one in trained]), float(loss.detach()), sizes


def test_adapters_in_float32_learn_the_same(llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what PEFT computes, where there is nothing narrow about the base; asked for the same logits."""
    monkeypatch.setattr(Recipe, "asks_answers_alone", False)
    before, loss_before, _ = looked_at(llama, tmp_path / "rows", precision="fp32", **PLAIN)
    after, loss_after, _ = looked_at(llama, tmp_path / "rows", precision="fp32", **NEW)
    assert loss_after == loss_before
    assert after.equal(before)


def test_adapters_that_take_norms_of_their_matrices_are_computed_wide(
    llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DoRA's: in 16 bits the lengths that it trains would be too coarse. Bit for bit what PEFT computes."""
    monkeypatch.setattr(Recipe, "asks_answers_alone", False)
    before, loss_before, _ = looked_at(llama, tmp_path / "rows", precision="bf16", use_dora=True, **PLAIN)
    after, loss_after, _ = looked_at(llama, tmp_path / "rows", precision="bf16", use_dora=True, **NEW)
    assert loss_after == loss_before
    assert after.equal(before)


def test_on_a_narrow_base_little_is_lost(llama: str, tmp_path: Path) -> None:
    """Against the same in float32, the gradient is off by about what the base's own rounding puts it off."""
    exact, _loss, _ = looked_at(llama, tmp_path / "rows", precision="fp32", **PLAIN)
    plain, loss_plain, _ = looked_at(llama, tmp_path / "rows", precision="bf16", **PLAIN)
    narrow, loss_narrow, _ = looked_at(llama, tmp_path / "rows", precision="bf16", **NEW)
    off_plain, off_narrow = (float((one - exact).norm() / exact.norm()) for one in (plain, narrow))
    assert off_narrow < 1.5 * off_plain < 0.02
    assert loss_narrow == pytest.approx(loss_plain, rel=2e-3)


def test_on_a_narrow_base_far_less_is_kept_of_each_layer(tmp_path: Path) -> None:
    """Less by the float32 copy of what an adapter reads. The prediction knows both."""
    from tests.training import tiny

    bases = [tiny.llama(tmp_path / str(layers), hidden=128, layers=layers) for layers in (1, 2)]
    a_layer = {}
    for name, how in (("wide", PLAIN), ("narrow", NEW)):
        one, two = (looked_at(base, tmp_path / "rows", precision="bf16", lora_rank=4, **how)[2] for base in bases)
        a_layer[name] = two - one
    assert a_layer["narrow"] < 0.65 * a_layer["wide"]
    assert a_layer == {name: pytest.approx(predicted(narrow=name == "narrow"), rel=0.02) for name in ("wide", "narrow")}


def predicted(*, narrow: bool) -> int:
    """What the predictor says that one more such layer keeps, of one row of 64 tokens."""
    from app.core.memory.architecture import Architecture, architecture_of
    from app.core.memory.predict import peak_of
    from app.core.memory.training import Training

    config = {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 300, "num_hidden_layers": 8,
    }  # fmt: skip
    model: Architecture = architecture_of(config)
    training = Training(method="lora", batch=1, sequence=64, rank=4, narrow_adapters=narrow)
    fewer, more = (peak_of(model.with_layers(layers), training) for layers in (8, 9))
    return (more.forward - more.resident) - (fewer.forward - fewer.resident)


def test_a_base_in_four_bits_keeps_what_it_was_read_in(llama: str) -> None:
    """Embedding, head and norms: no copy in float32 of what is only read, unless the job began with one."""
    import torch
    from transformers import AutoModelForCausalLM

    from workers.trainer.adapters import with_adapters

    found = {}
    for edition in (1, 2):
        base: Any = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16)
        base.is_loaded_in_4bit = True  # what PEFT goes by
        adapted = with_adapters(Recipe(model=llama, method="qlora", edition=edition), base, None)
        frozen = [one for name, one in adapted.named_parameters() if "lora_" not in name]
        assert not any(one.requires_grad for one in frozen)
        found[edition] = {one.dtype for one in frozen}
    assert found[2] == {torch.bfloat16}
    assert torch.float32 in found[1]
