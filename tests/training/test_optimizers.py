"""Which optimizer a recipe trains with, and what is asked of bitsandbytes where that is its."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from allpass.cli.finetune import plan_fields
from allpass.errors import InvalidInput
from allpass.recipe.packing import pack
from allpass.recipe.settings import Recipe
from tests.training.recipes import Course

pytestmark = pytest.mark.training
ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(8)]
NARROW = ("adamw_8bit", "paged_adamw_8bit")


def test_what_is_chosen_is_installed_planned_and_sent() -> None:
    """And nothing is said of it where it is the usual one, so that older releases take the job."""
    usual = pack({"model": "org/tiny"}, ROWS)
    assert "optimizer" not in usual.parameters
    assert usual.template.training.optimizer is None
    assert not any("bitsandbytes" in one for one in usual.pip)
    for name in NARROW:
        packed = pack({"model": "org/tiny", "optimizer": name, "method": "full"}, ROWS)
        assert packed.parameters["optimizer"] == name
        assert packed.template.training.optimizer == name
        assert plan_fields(packed, None)["optimizer"] == name
        assert any(one.startswith("bitsandbytes") for one in packed.pip)
    with pytest.raises(InvalidInput, match="optimizer: 'adamw8' is not one of adamw, adamw_8bit, paged_adamw_8bit"):
        Recipe.of({"model": "m", "optimizer": "adamw8"})


@pytest.mark.parametrize("name", NARROW)
def test_a_machine_without_a_gpu_says_so(name: str, tmp_path: Path) -> None:
    """Before weights are fetched: the model is one that nobody has."""
    from tests.training import tiny

    data = tiny.write_rows(tmp_path / "rows", "prompt", ROWS)
    parameters = {"model": str(tmp_path / "none"), "optimizer": name, "precision": "fp32"}
    with pytest.raises(SystemExit, match=f"error: optimizer: '{name}' keeps its states in 8 bits, and this machine"):
        Course(tmp_path / "course", data, parameters).run(by_hand=False)


@pytest.mark.parametrize(("name", "kind"), [("adamw_8bit", "AdamW8bit"), ("paged_adamw_8bit", "PagedAdamW8bit")])
def test_states_of_8_bits_are_bitsandbytes_own(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given all groups, each with the decay that it has with the usual one, and the same rate."""
    import torch

    from workers.trainer.updating import Update

    made: list[Any] = []

    class Stand(torch.optim.AdamW):
        def __init__(self, groups: Any, **more: Any) -> None:
            made.append(([group["weight_decay"] for group in groups], more))
            super().__init__(groups, **more)

    module = ModuleType("bitsandbytes")
    module.optim = SimpleNamespace(**{kind: Stand})  # type: ignore[attr-defined]  # a stand-in has what is asked for
    monkeypatch.setitem(sys.modules, "bitsandbytes", module)
    recipe = Recipe.of({"model": "m", "optimizer": name, "weight_decay": 0.1, "learning_rate": 1e-3})
    update = Update(recipe, torch.nn.Linear(4, 4), 10, torch.device("cpu"))
    assert made == [([0.1, 0.0], {"lr": 1e-3})]
    assert isinstance(update.parts["optimizer"], Stand)
