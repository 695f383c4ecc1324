"""Training state without pickle: what goes in comes out, bit for bit and type for type."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.training.tree import decode, encode

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_keys = st.text(max_size=4) | st.integers() | st.sampled_from(["$tensor", "$float", "$"])
_trees = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)


def _same(one: Any, other: Any) -> bool:
    """Equal in value, type, order and, for floats, in bits (all NaNs are one)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one.hex() == other.hex() or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            _same(a, b) for a, b in zip([*one.items()], [*other.items()], strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@given(_trees)
def test_any_nesting_of_plain_values_survives_json(tree: Any) -> None:
    """Tuples, integer keys, NaN, infinities, minus zero, keys with a dollar: nothing is changed on the way."""
    tensors: dict[str, Any] = {}
    text = json.dumps(encode(tree, tensors), allow_nan=False)
    assert _same(decode(json.loads(text), tensors), tree)


def test_counters_and_ordered_dicts() -> None:
    """The dict types that PyTorch's schedulers and models use keep their order, and counters what they are."""
    tensors: dict[str, Any] = {}
    there = {"milestones": Counter({30: 1, 10: 2}), "weights": OrderedDict(b=1, a=2)}
    back = decode(json.loads(json.dumps(encode(there, tensors))), tensors)
    assert isinstance(back["milestones"], Counter)
    assert back["milestones"] == there["milestones"]
    assert list(back["weights"].items()) == [("b", 1), ("a", 2)]


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j, print])
def test_what_only_pickle_could_store_is_refused_with_its_place(value: object) -> None:
    """The error says where in the state the value sits."""
    with pytest.raises(TypeError, match=r"state\.optimizer\.groups\[1\]"):
        encode({"optimizer": {"groups": [0, value]}}, {})


@pytest.mark.training
class TestWithTorch:
    def _train(self, kind: str, steps: int, stop_at: int | None = None, folder: Path | None = None) -> list[str]:
        """Train a small network with dropout; with `stop_at`, save there and go on in fresh objects."""
        import torch

        from allpass.training import torch_state

        torch.manual_seed(0)
        random.seed(0)
        model, optimizer, scheduler = self._make(kind)
        start, course = 1, []
        if folder is not None and stop_at is None:
            state = torch_state.load_training_state(folder, optimizer=optimizer, scheduler=scheduler)
            torch_state.load_weights(model, state.weights)
            assert state.data == {"epoch": 2, "seen": (1, None)}
            start = state.step + 1
        for step in range(start, steps + 1):
            inputs = torch.randn(4, 8) * random.random()
            loss = model(inputs).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            course.append(repr(loss.item()))
            if step == stop_at:
                assert folder is not None
                torch_state.save_training_state(
                    folder,
                    step=step,
                    weights=torch_state.trainable_weights(model),
                    optimizer=optimizer,
                    scheduler=scheduler,
                    data={"epoch": 2, "seen": (1, None)},
                )
                break
        return course

    @staticmethod
    def _make(kind: str) -> Any:
        import torch

        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
        )
        groups = [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": [*model[1].parameters(), *model[3].parameters()], "weight_decay": 0.01},
        ]
        optimizer: Any
        if kind == "adamw":
            optimizer = torch.optim.AdamW(groups, lr=0.01, amsgrad=True)
            return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 6])
        optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)

    @pytest.mark.parametrize("kind", ["adamw", "sgd"])
    @pytest.mark.parametrize("stop_at", [1, 5])
    def test_training_goes_on_exactly_in_fresh_objects(self, tmp_path: Path, kind: str, stop_at: int) -> None:
        """Model, optimizer, scheduler and random generators continue as if nothing had happened, twice over."""
        whole = self._train(kind, steps=9)
        first = self._train(kind, steps=9, stop_at=stop_at, folder=tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["training_state.json", "training_state.safetensors"]
        for _ in range(2):
            random.seed(99)  # what the process did before must not matter
            assert first + self._train(kind, steps=9, folder=tmp_path) == whole

    @pytest.mark.parametrize("kind", ["adamw", "sgd"])
    def test_an_optimizers_state_comes_back_as_it_was(self, tmp_path: Path, kind: str) -> None:
        """Nested groups, integers, floats, None, booleans and tensors of every dtype are the same afterwards."""
        import torch

        from allpass.training import torch_state

        model, optimizer, _ = self._make(kind)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        tree = {
            "optimizer": optimizer.state_dict(),
            "odd": [
                torch.tensor(1.5),
                torch.zeros(0, 3),
                torch.tensor([math.nan, -0.0, math.inf]),
                torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
                torch.tensor([2**62, -1]),
                torch.tensor([True, False]),
            ],
        }
        torch_state.save_tree(tmp_path, tree)
        back = torch_state.load_tree(tmp_path)

        def same(one: Any, other: Any) -> bool:
            if isinstance(one, torch.Tensor):
                bits = [value.contiguous().reshape(-1).view(torch.uint8) for value in (one, other)]
                return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
            if isinstance(one, dict):
                return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
            if isinstance(one, list):
                return len(one) == len(other) and all(map(same, one, other))
            return _same(one, other)

        assert same(tree, back)

    def test_every_random_generator_continues(self, tmp_path: Path) -> None:
        """Python's, numpy's and torch's next numbers are the same after a round trip through the disk."""
        import numpy as np
        import torch

        from allpass.training import torch_state

        def draw() -> list[object]:
            return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]

        draw()
        torch_state.save_tree(tmp_path, torch_state.capture_rng())
        wanted = draw()
        assert draw() != wanted
        torch_state.restore_rng(torch_state.load_tree(tmp_path))
        assert draw() == wanted

    def test_weights_of_another_model_are_refused(self) -> None:
        """Missing names and other shapes are named; nothing is loaded silently in part."""
        import torch

        from allpass.training import torch_state

        small, large = torch.nn.Linear(2, 2), torch.nn.Linear(3, 2)
        with pytest.raises(ValueError, match="names differ"):
            torch_state.load_weights(small, {"weight": torch.zeros(2, 2)})
        with pytest.raises(ValueError, match=r"weight: the checkpoint holds .*\(2, 3\)"):
            torch_state.load_weights(small, torch_state.trainable_weights(large))

    def test_a_state_that_was_not_saved_is_missed(self, tmp_path: Path) -> None:
        """Asking for an optimizer that the checkpoint lacks is an error, not a fresh optimizer."""
        import torch

        from allpass.training import torch_state

        torch_state.save_training_state(tmp_path, step=3, weights={})
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        with pytest.raises(ValueError, match="without optimizer"):
            torch_state.load_training_state(tmp_path, optimizer=optimizer)
        assert torch_state.load_training_state(tmp_path).step == 3
