"""The precision of a job that was given none: the first GPU's, and then the job's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.settings import Recipe
from tests.training.recipes import Course
from tests.training.scripts import files_of

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(16)]
QUICK: dict[str, Any] = {"steps": 4, "batch_size": 8, "learning_rate": 5e-3}


class OnCards(Course):
    """Each part on a machine of which is said whether its card has bf16."""

    cards: tuple[bool, ...] = ()
    patch: pytest.MonkeyPatch

    def _environment(self, place: Path, resume_from: Path | None) -> dict[str, str]:
        from workers.trainer import precision

        has = self.cards[min(len(self.parts), len(self.cards)) - 1]
        self.patch.setattr(precision, "has_bf16", lambda: has)
        return super()._environment(place, resume_from)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("ground")
    return tiny.llama(folder / "llama"), tiny.write_rows(folder / "sums", "prompt", SUMS[:12], SUMS[12:])


@pytest.mark.parametrize(("first", "numbers"), [(False, "fp16"), (True, "bf16")])
def test_what_it_began_in_it_goes_on_in(
    ground: tuple[str, Path], first: bool, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that began on a card without bf16 is moved to one with it, or the other way round: it ends as if left
    alone, and says what it was trained in."""
    base, data = ground
    parameters = Recipe.new({"model": base, **QUICK}).parameters()
    whole, moved = (OnCards(tmp_path / name, data, parameters) for name in ("whole", "moved"))
    whole.patch = moved.patch = monkeypatch
    whole.cards, moved.cards = (first,), (first, not first)
    whole.run()
    moved.run([2])
    assert moved.points() == whole.points()
    assert files_of(moved.output) == files_of(whole.output)
    assert Recipe.of(moved.summary()["recipe"]).numbers == numbers


@pytest.mark.parametrize("told", [{"precision": "bf16"}, {"edition": 1}, {"method": "full"}])
def test_a_precision_that_was_chosen_is_not_changed(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor that of a job of an older version, nor of weights that fp16 has too small a range for."""
    from allpass.training.session import Session
    from workers.trainer import precision

    monkeypatch.setattr(precision, "has_bf16", lambda: False)
    recipe = Recipe.new({"model": "m", **told})
    assert precision.settled(recipe, Session({})) is recipe


def test_weights_are_read_straight_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is not asked for memory for all of them; a process that stands by keeps them off the GPU."""
    import torch
    from transformers import AutoModelForCausalLM

    from workers.trainer import base

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda name, **options: asked.append(options))
    recipe = Recipe.new({"model": "org/model"})
    for kind in ("cuda", "cpu"):
        base.causal_model(recipe, torch.device(kind))
    assert asked == [{"dtype": torch.bfloat16, "device_map": {"": torch.device("cuda")}}, {"dtype": torch.bfloat16}]
