"""What a job began with it goes on with: its edition, and the precision of its first GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.settings import EDITION, Recipe
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
        from workers.trainer import begun

        has = self.cards[min(len(self.parts), len(self.cards)) - 1]
        self.patch.setattr(begun, "has_bf16", lambda: has)
        return super()._environment(place, resume_from)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("ground")
    return tiny.llama(folder / "llama"), tiny.write_rows(folder / "sums", "prompt", SUMS[:12], SUMS[12:])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows, as this version packs them."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("packed")
    return tiny.write_rows(folder / "sums", "prompt", SUMS[:12], SUMS[12:], edition=EDITION)


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
    from workers.trainer import begun
    from workers.trainer.rows import Data

    monkeypatch.setattr(begun, "has_bf16", lambda: False)
    recipe = Recipe.new({"model": "m", **told})
    found = begun.settled(recipe, Data("prompt", (), (), ()), Session({}))
    assert (found.precision, found.edition, found.method) == (recipe.precision, recipe.edition, recipe.method)


def older(checkpoint: Path) -> Path:
    """A checkpoint as trainers wrote it that knew of no editions."""
    state = checkpoint / "training_state.json"
    told = json.loads(state.read_text())
    assert told["data"].pop("edition") == 1
    state.write_text(json.dumps(told))
    return checkpoint


def test_the_edition_comes_with_the_rows(ground: tuple[str, Path], packed: Path, tmp_path: Path) -> None:
    """A job's parameters say nothing of it, for machines that have an older trainer: there it trains in that one's way,
    and goes on in it wherever it comes to."""
    base, data = ground
    told: dict[str, Any] = {"model": base, **QUICK}
    first, newest = (
        Course(tmp_path / name, data, {**told, "edition": edition}).run()
        for name, edition in (("first", 1), ("newest", EDITION))
    )
    new = Course(tmp_path / "new", packed, told).run([2])
    assert new.points() == newest.points() != first.points()
    Course(tmp_path / "old", data, told).run([2])
    left = older(tmp_path / "old" / "part0" / "checkpoints" / "step-00000002")
    moved = Course(tmp_path / "moved", packed, told, environ={"ALLPASS_RESUME_DIR": str(left)})
    rest = moved.run().points()
    assert max(rest) == 4
    assert rest == {step: first.points()[step] for step in rest}


def test_what_a_newer_version_packed_is_trained_as_this_one_can(ground: tuple[str, Path], tmp_path: Path) -> None:
    """As after a release was rolled back. What that one began is not gone on with in another way without a word."""
    from allpass.errors import InvalidInput
    from tests.training import tiny

    told: dict[str, Any] = {"model": ground[0], **QUICK}
    newer = tiny.write_rows(tmp_path / "newer", "prompt", SUMS[:12], SUMS[12:], edition=EDITION + 1)
    course = Course(tmp_path / "course", newer, told).run()
    state = course.last_checkpoint / "training_state.json"
    began = json.loads(state.read_text())
    assert began["data"]["edition"] == EDITION
    began["data"]["edition"] = EDITION + 1
    state.write_text(json.dumps(began))
    later = Course(tmp_path / "later", newer, told, environ={"ALLPASS_RESUME_DIR": str(course.last_checkpoint)})
    with pytest.raises(InvalidInput, match=rf"edition: {EDITION + 1} is newer than this version"):
        later.run()


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
