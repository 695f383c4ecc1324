"""A state of which several processes wrote a part each, read by however many: whole, or refused with what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allpass.training.safe_file import read_tensors, write_tensors
from allpass.training.spread_state import load_spread, names_in, part_name
from allpass.training.torch_state import own_part, save_tree
from allpass.training.tree import Parts, Shard

pytestmark = pytest.mark.training


def write(folder: Path, parts: list[torch.Tensor], step: int = 3) -> Path:
    """A state with one spread tensor, and one that all have."""
    folder.mkdir(exist_ok=True)
    for own, part in enumerate(parts):
        tree = {
            "step": step,
            "weights": {"w": Shard(part), "b": torch.ones(2)},
            "optimizer": None,
            "data": {"own": own},
        }
        save_tree(folder, tree, part_name(own, len(parts)))
    return folder


def cut(whole: torch.Tensor, count: int) -> list[torch.Tensor]:
    """As FSDP cuts: the last ones have fewer rows, or none."""
    found = list(whole.chunk(count))
    return [*found, *(whole[:0] for _ in range(count - len(found)))]


class Like:
    """A tensor of which `rank` of `count` has its part."""

    def __init__(self, shape: tuple[int, ...], rank: int, count: int) -> None:
        self.shape, self.ndim, self.placements = torch.Size(shape), 1, [self]
        self._own, self._rank, self._count = cut(torch.zeros(shape), count)[rank], rank, count
        self.device_mesh = self

    def is_shard(self, dim: int) -> bool:
        return dim == 0

    def size(self) -> int:
        return self._count

    def get_local_rank(self) -> int:
        return self._rank

    def to_local(self) -> torch.Tensor:
        return self._own


@given(rows=st.integers(0, 17), before=st.integers(1, 6), after=st.integers(1, 6))
def test_as_many_or_others_get_what_is_theirs(rows: int, before: int, after: int) -> None:
    """Together they have each row once, in order; one that is not spread has all of them."""
    whole = torch.arange(rows * 3.0).view(rows, 3)
    saved = Shard(Parts(tuple(cut(whole, before))))
    found = [own_part(saved, Like((rows, 3), rank, after)) for rank in range(after)]
    assert torch.equal(torch.cat([one.part for one in found]), whole)
    again = [own_part(whole, Like((rows, 3), rank, after)) for rank in range(after)]
    assert all(torch.equal(one.part, other.part) for one, other in zip(found, again, strict=True))
    assert torch.equal(own_part(saved, whole), whole)


def test_all_parts_together_are_the_state(tmp_path: Path) -> None:
    whole = torch.arange(10.0).view(5, 2)
    state = load_spread(write(tmp_path, cut(whole, 3)))
    assert torch.equal(state["weights"]["w"].part.rows(0, 5), whole)
    assert torch.equal(state["weights"]["w"].part.rows(1, 4), whole[1:4])
    assert (state["step"], state["data"]) == (3, {"own": 0})
    assert torch.equal(state["weights"]["b"], torch.ones(2))


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path, cut(torch.zeros(5, 2), 3))
    (tmp_path / f"{part_name(1, 3)}.json").unlink()
    with pytest.raises(ValueError, match=r"training_state-2-of-3\.json is missing"):
        names_in(tmp_path)


@pytest.mark.parametrize("break_it", ["nothing", "two", "many", "steps", "names", "shapes"])
def test_what_does_not_belong_together_is_refused(tmp_path: Path, break_it: str) -> None:
    """Of one size or another, or of another step: a state is not put together out of two."""
    if break_it != "nothing":
        write(tmp_path, cut(torch.zeros(4, 2), 2))
    if break_it == "two":
        write(tmp_path, cut(torch.zeros(4, 2), 3))
    elif break_it == "many":
        for one in (tmp_path / f"{part_name(0, 2)}.json", tmp_path / f"{part_name(1, 2)}.json"):
            one.unlink()
        (tmp_path / f"{part_name(0, 10**9)}.json").write_text("{}")
    elif break_it in ("steps", "names"):
        tree: dict[str, Any] = {"step": 3, "weights": {"w": Shard(torch.zeros(2, 2)), "b": torch.ones(2)}}
        if break_it == "steps":
            tree["step"] = 4
        else:
            tree["weights"]["other"] = tree["weights"].pop("w")
        save_tree(tmp_path, {**tree, "optimizer": None, "data": {}}, part_name(1, 2))
    elif break_it == "shapes":
        write(tmp_path, [torch.zeros(2, 2), torch.zeros(2, 3)])
    with pytest.raises(ValueError, match=r"training state|of other types"):
        load_spread(tmp_path)["weights"]["w"].part.rows(0, 4)


def test_parts_of_another_model_are_refused() -> None:
    saved = Shard(Parts((torch.zeros(2, 2), torch.zeros(2, 2))))
    with pytest.raises(ValueError, match=r"the checkpoint holds \(4, 2\), the model \(5, 2\)"):
        own_part(saved, torch.zeros(5, 2))


def test_a_part_that_lacks_a_tensor_is_of_another_state(tmp_path: Path) -> None:
    """Though its words are the same: a file that was put in the place of its own."""
    folder = write(tmp_path / "state", cut(torch.arange(4.0).view(2, 2), 2))
    other = write(tmp_path / "other", [torch.ones(1, 2), torch.ones(1, 2)])
    tensors = read_tensors(other / f"{part_name(1, 2)}.safetensors")
    kept = {name: one.clone() for name, one in tensors.items() if name != min(tensors)}
    write_tensors(folder / f"{part_name(1, 2)}.safetensors", kept)
    with pytest.raises(ValueError, match="parts of different training states"):
        load_spread(folder)
