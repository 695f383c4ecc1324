"""The tape: what is alive, when, and what a step backwards needs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.core.memory.ops import Ops
from app.core.memory.tape import Node, ShadowTensor, Tape


def _tape(**options: bool) -> Tape:
    return Tape(adds_in_place=options.pop("adds_in_place", True), **options)


def _alive(tape: Tape, *dims: str) -> float:
    return tape.live[tape.slot(dims)]


def _most(tape: Tape, phase: str, *dims: str) -> float:
    slot = tape.slot(dims)
    return max(event.live[slot] if slot < len(event.live) else 0.0 for event in tape.events if event.phase == phase)


def test_bytes_live_as_long_as_their_tensor() -> None:
    """A storage is counted while any tensor refers to it, views included, and not after."""
    tape = _tape()
    x = tape.new(("t", "h"), 2)
    seen = x.view()
    del x
    assert _alive(tape, "t", "h") == 2
    del seen
    assert _alive(tape, "t", "h") == 0


def test_the_order_of_dimensions_does_not_matter() -> None:
    """Hidden x intermediate and intermediate x hidden are the same column."""
    tape = _tape()
    held = [tape.new(("h", "i"), 2), tape.new(("i", "h"), 4)]
    assert _alive(tape, "i", "h") == 6
    assert len(held) == 2


def test_what_needs_no_gradient_is_not_kept() -> None:
    """A step without any input that trains keeps nothing and has no way back."""
    tape = _tape()
    out = Ops(tape, autocast=False).pointwise(tape.new(("t", "i"), 2))
    assert out.node is None
    assert _alive(tape, "t", "i") == 2


def _chain(tape: Tape, steps: int) -> ShadowTensor:
    """Activations in a row, after one matrix that trains."""
    ops = Ops(tape, autocast=False)
    x = ops.linear(tape.new(("t", "h"), 2), tape.weight(("h", "i"), 2, trains=True), ("t", "i"))
    for _ in range(steps):
        x = ops.pointwise(x)
    return x


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_chain_keeps_its_inputs_and_returns_them(steps: int) -> None:
    """Every activation keeps its input until its own step backwards, after which only the gradient is left."""
    tape = _tape()
    out = _chain(tape, steps)
    assert _alive(tape, "t", "i") == 2 * (steps + 1)
    tape.phase = "backward"
    grad = tape.like(out)
    tape.backward(out, grad)
    del out, grad
    assert _alive(tape, "t", "i") == 0
    assert _alive(tape, "t", "h") == 0
    assert _alive(tape, "h", "i") == 2, "the gradient of the matrix is there for the optimizer"


def test_a_checkpoint_keeps_only_its_input_until_the_way_back() -> None:
    """Inside a checkpoint nothing is kept on the way forward; all of it is back on the way back, and then gone."""
    tape = _tape()
    ops = Ops(tape, autocast=False)
    weight = tape.weight(("h", "i"), 2, trains=True)

    def stretch(x: ShadowTensor) -> ShadowTensor:
        for _ in range(3):
            x = ops.pointwise(x)
        return x

    start = ops.linear(tape.new(("t", "h"), 2), weight, ("t", "i"))
    out = tape.checkpoint(stretch, start)
    del start
    assert _alive(tape, "t", "i") == 4, "the input of the stretch and its output"
    tape.phase = "backward"
    tape.backward(out, tape.like(out))
    del out
    assert _most(tape, "backward", "t", "i") >= 2 * 5, "three kept inputs, the output and a gradient"
    assert _alive(tape, "t", "i") == 0


def test_a_gradient_waits_for_all_of_its_parts() -> None:
    """A tensor used twice gets the sum of both gradients before its own step runs, once."""
    tape = _tape()
    calls: list[str] = []

    def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Sequence[ShadowTensor | None]:
        calls.append("source")
        return (None,)

    weight = tape.weight(("h",), 4, trains=True)
    source = tape.step(tape.new(("t", "h"), 2), (weight,), (), back)
    ops = Ops(tape, autocast=False)
    out = ops.add(ops.pointwise(source), ops.pointwise(source))
    del source
    tape.backward(out, tape.like(out))
    assert calls == ["source"]


def test_sums_of_gradients_in_place_or_not() -> None:
    """PyTorch on CUDA adds into a gradient that nobody else holds; a symbolic run makes one more tensor."""
    made = {}
    for in_place in (True, False):
        tape = _tape(adds_in_place=in_place)
        ops = Ops(tape, autocast=False)
        x = ops.linear(tape.new(("t", "h"), 2), tape.weight(("h", "i"), 2, trains=True), ("t", "i"))
        out = ops.add(ops.scale(x), ops.scale(x))
        del x
        tape.phase = "backward"
        tape.backward(out, tape.new(("t", "i"), 2))
        made[in_place] = sum(event.phase == "backward" for event in tape.events)
    assert made[False] == made[True] + 1


def test_a_gradient_that_somebody_else_holds_is_never_overwritten() -> None:
    """The residual's gradient goes to two places: the sum is a tensor of its own until only one of them is left."""
    tape = _tape(adds_in_place=True)
    ops = Ops(tape, autocast=False)
    x = ops.linear(tape.new(("t", "h"), 2), tape.weight(("h", "i"), 2, trains=True), ("t", "i"))
    out = ops.add(x, x)
    del x
    tape.phase = "backward"
    before = len(tape.events)
    tape.backward(out, tape.new(("t", "i"), 2))
    assert len(tape.events) - before == 3, "the gradient given, the sum of the two, and the matrix's own"


def test_gradients_that_leave_at_once_are_not_collected() -> None:
    """With sharded gradients, or an optimizer inside the way back, a matrix keeps no gradient."""
    tape = _tape(keeps_gradients=False)
    out = _chain(tape, 1)
    tape.backward(out, tape.like(out))
    assert _alive(tape, "h", "i") == 0


def test_autocast_keeps_one_narrow_copy_of_a_weight() -> None:
    """A trained float32 matrix used twice under autocast has one half-precision copy, not two."""
    tape = _tape()
    ops = Ops(tape, autocast=True)
    weight = tape.weight(("h", "i"), 4, trains=True)
    outs = [ops.linear(tape.new(("t", "h"), 4), weight, ("t", "i")) for _ in range(2)]
    assert _alive(tape, "h", "i") == 2
    assert [out.item for out in outs] == [2, 2]


def test_parts_of_one_tensor_are_put_together_once() -> None:
    """The gradients of a split are joined in one tensor of the whole; those of slices are padded one by one."""
    for parts, most in (("split", 1), ("slices", 2)):
        tape = _tape()
        ops = Ops(tape, autocast=False)
        fused = ops.linear(tape.new(("t", "h"), 2), tape.weight(("h", "f"), 2, trains=True), ("t", "f"))
        left, right = getattr(ops, parts)(fused, (("t", "q"), ("t", "q")))
        del fused
        out = ops.mul(left, right)
        del left, right
        tape.phase = "backward"
        tape.backward(out, tape.like(out))
        del out
        whole = _most(tape, "backward", "t", "f") - 2  # the fused tensor itself is kept by the product
        assert whole >= 2 * most - 2
        assert _alive(tape, "t", "f") == 0
