"""How a step of the built-in recipe is cut: with little padding, to the same gradient, and as the job began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.recipe.encoding import IGNORED, Example
from allpass.recipe.settings import Recipe
from tests.training.recipes import Course
from workers.trainer.cutting import as_drawn, by_length, evenly, joined

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
# Answers of one to thirty digits: as unlike in length as a chat's are.
UNLIKE = [{"prompt": f"{number}=", "completion": "7" * (1 + (number * number) % 31)} for number in range(20)]
COMMON: dict[str, Any] = {"batch_size": 8, "micro_batch": 4, "steps": 4, "precision": "fp32", "learning_rate": 5e-3}
LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.training import tiny

    made: str = tiny.llama(tmp_path_factory.mktemp("llama"))
    return made


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.training import tiny

    return tiny.write_rows(tmp_path_factory.mktemp("unlike"), "prompt", UNLIKE[:16], UNLIKE[16:])


def rows_of(lengths: list[int]) -> list[Example]:
    return [Example((number,) * length, (number,) * length) for number, length in enumerate(lengths)]


@given(LENGTHS, st.integers(1, 9))
def test_every_row_goes_through_once_however_it_is_cut(lengths: list[int], most_rows: int) -> None:
    """In as few micro-batches as before, none of more rows than may be at once; lines hold what they are given."""
    rows = rows_of(lengths)
    for cut in (as_drawn, by_length, evenly):
        parts = cut(rows, most_rows)
        assert len(parts) == -(-len(rows) // most_rows)
        assert all(1 <= len(part) <= most_rows for part in parts)
        assert sorted(one.ids for part in parts for one in part) == sorted(one.ids for one in rows)
        for part in parts:
            assert sorted(one.ids for line in joined(part) for one in line) == sorted(one.ids for one in part)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_joined_rows_are_hardly_padded(lengths: list[int]) -> None:
    """By a fiftieth at most, and no line is empty."""
    lines = joined(rows_of(lengths))
    longest = max(sum(len(one.ids) for one in line) for line in lines)
    assert all(lines)
    assert longest * len(lines) <= 1.02 * sum(lengths)


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=6))
def test_joined_rows_never_cost_more_than_a_line_for_each(lengths: list[int]) -> None:
    """Neither in tokens nor in what attention looks at, which goes by the square of a line: memory was predicted for
    a line for each row. Small ones may be joined all the same."""
    lines = [sum(len(one.ids) for one in line) for line in joined(rows_of(lengths))]
    assert len(lines) * max(lines) <= len(lengths) * max(lengths)
    assert len(lines) * max(lines) ** 2 <= max(4096**2, len(lengths) * max(lengths) ** 2)


def loaded(parameters: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    from workers.trainer import model, rows, tasks

    recipe, data = Recipe.of(parameters), rows.load(folder)
    prepared = model.prepare(recipe, data.labels)
    return tasks.load(data, recipe, prepared), prepared


def gradient(task: Any, prepared: Any, step: int) -> tuple[Any, int]:
    """Of all adapters, and how many tokens were computed for it."""
    import torch

    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():  # of adapters that do nothing yet only half have a gradient
        for name, one in sorted(prepared.model.named_parameters()):
            if "lora_B" in name:
                one.copy_(0.05 * torch.randn(one.shape, generator=draw))
    batches = task.micro_batches(step)
    counted = sum(batch.counted for batch in batches)
    for batch in batches:
        (task.loss(prepared.model, batch).total / counted).backward()
    found = torch.cat([one.grad.flatten() for one in prepared.model.parameters() if one.requires_grad])
    prepared.model.zero_grad(set_to_none=True)
    return found, sum(batch.ids.numel() for batch in batches)


def test_rows_that_are_joined_or_put_in_order_give_the_same_gradient(llama: str, unlike: Path) -> None:
    """To the rounding of sums; joined rows are computed without padding."""
    given_, sizes = {}, {}
    kinds = {"drawn": {"edition": 1}, "in order": {"edition": 2, "packing": False}, "joined": {"edition": 2}}
    for kind, how in kinds.items():
        task, prepared = loaded({"model": llama, **COMMON, "lora_dropout": 0.0, **how}, unlike)
        assert task.joins_rows == (kind == "joined")
        given_[kind], sizes[kind] = gradient(task, prepared, 1)
        read = task.tokens(1)
    for kind in ("in order", "joined"):
        assert float((given_[kind] - given_["drawn"]).norm() / given_["drawn"].norm()) < 1e-6
    assert sizes["joined"] <= 1.02 * read < sizes["in order"] < sizes["drawn"]


def test_no_logits_are_computed_but_those_that_are_learned(
    llama: str, unlike: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and the hits are those of all of them."""
    from workers.trainer.loss import answers_loss, next_token_loss

    task, prepared = loaded({"model": llama, **COMMON, "edition": 2}, unlike)
    head = prepared.model.get_output_embeddings()
    asked: list[int] = []
    head.register_forward_hook(lambda module, given, made: asked.append(made.shape[1]))
    for batch in task.micro_batches(1):
        some, all_ = (ask(prepared.model.eval(), batch) for ask in (answers_loss, next_token_loss))
        assert float(some.total.detach()) == pytest.approx(float(all_.total.detach()), rel=1e-6)
        assert int(some.hits) == int(all_.hits)
        assert asked[-2] == batch.counted / len(batch.ids) < asked[-1] == batch.ids.shape[1]
    assert task.loss is answers_loss


def test_a_job_of_an_older_version_goes_on_as_it_began(llama: str, unlike: Path, tmp_path: Path) -> None:
    """Its parameters say nothing of an edition: steps are those it had, also after a stop, and not those of a new
    job; a new job ends the same however it is stopped."""
    old = Course(tmp_path / "old", unlike, {"model": llama, **COMMON}).run()
    same = Course(tmp_path / "same", unlike, {"model": llama, **COMMON, "edition": 1, "lora_dropout": 0.05}).run([2])
    new = Recipe.new({"model": llama, **COMMON}).parameters()
    whole, moved = (Course(tmp_path / name, unlike, new) for name in ("whole", "moved"))
    assert same.points() == old.points()
    assert whole.run().points() == moved.run([1, 3]).points() != old.points()


def test_where_the_model_mixes_joined_rows_up_they_are_put_in_order(
    llama: str, unlike: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that pays no heed to where a row begins would learn to answer one row by another."""
    from transformers import LlamaForCausalLM

    heeding = LlamaForCausalLM.forward

    def heedless(self: Any, *args: Any, position_ids: Any = None, **more: Any) -> Any:
        return heeding(self, *args, **more)

    monkeypatch.setattr(LlamaForCausalLM, "forward", heedless)
    task, _prepared = loaded({"model": llama, **COMMON, "edition": 2}, unlike)
    assert not task.joins_rows
    assert [len(batch.ids) for batch in task.micro_batches(1)] == [4, 4]


def test_a_machine_that_would_compute_other_steps_says_so(
    llama: str, unlike: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than go on with what is not quite the same training."""
    from workers.trainer import tasks

    parameters = Recipe.new({"model": llama, **COMMON}).parameters()

    class Elsewhere(Course):
        def _environment(self, place: Path, resume_from: Path | None) -> dict[str, str]:
            if resume_from is not None:
                monkeypatch.setattr(tasks, "tells_apart", lambda prepared: False)
            return super()._environment(place, resume_from)

    with pytest.raises(ValueError, match=r"packing: on this machine the model does not tell joined rows apart"):
        Elsewhere(tmp_path, unlike, parameters).run([2])


def test_an_edition_that_is_not_known_yet_is_refused() -> None:
    """After a release was rolled back, its jobs do not go on in another way."""
    from allpass.errors import InvalidInput

    with pytest.raises(InvalidInput, match=r"edition: 5 is newer than this version of Allpass, which knows 4"):
        Recipe.of({"model": "m", "edition": 5})


def test_a_row_without_an_answer_teaches_nothing_and_stops_nothing(llama: str, unlike: Path) -> None:
    """Alone in its micro-batch, no logits at all are asked for."""
    task, prepared = loaded({"model": llama, **COMMON, "edition": 2}, unlike)
    loss = task.loss(prepared.model, task.batch([Example((1, 18, 31), (IGNORED,) * 3)])).total
    loss.backward()
    assert float(loss.detach()) == 0
