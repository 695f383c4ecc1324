"""Pairs of answers are learned as TRL's DPOTrainer learns them: losses, what is told of a step, and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import made_by

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
MOST_OFF = 1e-6
TOLD = {
    "reward_margin": "rewards/margins",
    "reward_chosen": "rewards/chosen",
    "reward_rejected": "rewards/rejected",
    "accuracy": "rewards/accuracies",
}
MODELS = ("HuggingFaceTB/SmolLM2-135M", "google/gemma-2-2b")


def gradients(ground: Any) -> dict[str, Any]:
    """Of our first step."""
    task, prepared = ground.loaded()
    batches = task.micro_batches(1)
    sum(task.loss(prepared.model, batch).total for batch in batches).div(sum(one.counted for one in batches)).backward()
    return {name: one.grad for name, one in prepared.model.named_parameters() if one.grad is not None}


def test_pairs_are_learned_as_trl_learns_them(tmp_path: Path) -> None:
    """With a new adapter, and with one that is gone on from, which is the reference then; also on rows that are
    joined here, and padded there; also of a model that caps its logits."""
    import torch
    from safetensors.torch import load_file

    from benchmarks.recipe import AS_TRL, SETTINGS, Ground, Trl, short_pairs
    from benchmarks.recipe_cases import make

    settings = {**SETTINGS, **AS_TRL, "beta": 0.2, "learning_rate": 5e-4}
    trl = Trl(made_by["ENVIRONMENTS"], tmp_path)
    trained: list[tuple[Any, dict[int, dict[str, float]], dict[str, Any]]] = []
    for number, name in enumerate(MODELS):
        base = make(name, tmp_path / f"base{number}", dropout=False)
        before = None
        for goes_on in (False, True):
            place = tmp_path / f"{number}{goes_on}"
            more = {} if before is None else {"adapter": str(before)}
            ours = {key: value for key, value in settings.items() if before is None or key != "lora_rank"}
            ground = Ground.of(place, base, short_pairs(), {**ours, **more, "packing": goes_on})
            trl.ask(ground, bf16=False)
            course = ground.course(place / "course").run()
            trained.append((ground, course.points(), gradients(ground)))
            before = course.output
    found = trl.told()
    assert found is not None, "TRL's environment is not there: ./allpass test clients makes it"
    for number, ((_ground, points, ours), theirs) in enumerate(zip(trained, found, strict=True)):
        for step, told in enumerate(theirs["steps"], 1):
            assert points[step]["loss"] == pytest.approx(told["loss"], abs=MOST_OFF)
            for name, its in TOLD.items():
                assert points[step][name] == pytest.approx(told[its], abs=MOST_OFF), (step, name)
        assert points[3]["loss"] < points[1]["loss"]
        expected = load_file(tmp_path / f"adapter{number}" / "gradients.safetensors")
        largest = max(float(one.abs().max()) for one in expected.values())
        assert largest > 1e-4
        for name, one in expected.items():
            assert torch.allclose(ours[name], one, rtol=0, atol=2 * MOST_OFF * max(1.0, largest)), name
