"""Operators that work value by value: what each allocates, keeps for the way back, and needs on it.

Read off the operators' derivative formulas (`derivatives.yaml`) and off symbolic runs of the real modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.memory.tape import Dims, Node, ShadowTensor, Tape, Weight

Grads = Sequence[ShadowTensor | None]
FULL, HALF = 4, 2


@dataclass(slots=True)
class Pointwise:
    """Operators on one tape that work value by value, and norms. Without autocast nothing is cast."""

    tape: Tape
    autocast: bool
    temporary_softmax: bool = True

    # -- moving and casting -------------------------------------------------------------------------------------

    def cast(self, x: ShadowTensor, item: float) -> ShadowTensor:
        """`x.to(dtype)`: no step at all when it already is that wide."""
        if x.item == item:
            return x
        was = x.item

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return (tape.like(hand[0], was),)

        return self.tape.step(self.tape.like(x, item), (x,), (), back)

    def clone(self, x: ShadowTensor) -> ShadowTensor:
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (hand.pop(),))

    def transposed(self, x: ShadowTensor) -> ShadowTensor:
        """A view whose gradient has to be made contiguous before the matrix product behind it."""
        return self.tape.step(x.view(), (x,), (), lambda tape, node, hand: (tape.like(hand[0]),))

    def lowered(self, x: ShadowTensor) -> ShadowTensor:
        """What autocast does to an input of a matrix product."""
        return self.cast(x, HALF) if self.autocast else x

    def raised(self, x: ShadowTensor) -> ShadowTensor:
        """What autocast does to an input of an operator on its float32 list."""
        return self.cast(x, FULL) if self.autocast else x

    # -- arithmetic ---------------------------------------------------------------------------------------------

    def add(self, a: ShadowTensor, b: ShadowTensor) -> ShadowTensor:
        wide, narrow_a, narrow_b = max(a.item, b.item), a.item, b.item

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            grad = hand[0]
            to_a = grad if narrow_a == wide else tape.like(grad, narrow_a)
            return to_a, grad if narrow_b == wide else tape.like(grad, narrow_b)

        return self.tape.step(self.tape.like(a, wide), (a, b), (), back)

    def mul(self, a: ShadowTensor, b: ShadowTensor) -> ShadowTensor:
        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return tuple(None if to is None else tape.like(hand[0]) for to in node.inputs)

        saved = ([b] if a.node else []) + ([a] if b.node else [])
        return self.tape.step(self.tape.like(a, max(a.item, b.item)), (a, b), saved, back)

    def scale(self, x: ShadowTensor) -> ShadowTensor:
        """Times, or plus, or divided by a number."""
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (tape.like(hand[0]),))

    def plus_number(self, x: ShadowTensor) -> ShadowTensor:
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (hand[0],))

    def power(self, x: ShadowTensor) -> ShadowTensor:
        x = self.raised(x)

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            power = tape.like(hand[0])
            times = tape.like(hand[0])
            grad = tape.like(hand[0])
            del power, times
            return (grad,)

        return self.tape.step(self.tape.like(x), (x,), (x,), back)

    def pointwise(self, x: ShadowTensor, *, keeps: str = "input") -> ShadowTensor:
        """An activation that keeps its input (silu, gelu) or its output (tanh)."""
        out = self.tape.like(x)
        saved = (x,) if keeps == "input" else (out.view(),)
        return self.tape.step(out, (x,), saved, lambda tape, node, hand: (tape.like(hand[0]),))

    def dropout(self, x: ShadowTensor, rate: float) -> ShadowTensor:
        """With a mask of one byte for each value."""
        if rate <= 0:
            return x
        out, mask = self.tape.like(x), self.tape.like(x, 1)
        return self.tape.step(out, (x,), (mask,), lambda tape, node, hand: (tape.like(hand[0]),))

    # -- normalisation ------------------------------------------------------------------------------------------

    def layer_norm(self, x: ShadowTensor, weight: Weight) -> ShadowTensor:
        x = self.raised(x)
        rows = self.tape.new(("t",), 8)
        return self.tape.step(
            self.tape.like(x),
            (x, weight),
            (x, rows),
            lambda tape, node, hand: (
                tape.like(hand[0]) if node.inputs[0] else None,
                tape.new(weight.dims, weight.item) if node.inputs[1] else None,
            ),
        )

    def normed(self, x: ShadowTensor, rows: Dims = ("t",)) -> ShadowTensor:
        """`x * rsqrt(mean(x ** 2))`, written out as the models write it."""
        power = self.power(x)
        mean = self._mean(power, rows)
        del power
        root = self.tape.new(rows, x.item)
        root = self.tape.step(root, (mean,), (root.view(),), lambda tape, node, hand: (tape.like(hand[0]),))
        del mean
        return self._times_rows(x, root)

    def _mean(self, x: ShadowTensor, rows: Dims) -> ShadowTensor:
        dims, item, parts = x.dims, x.item, x.parts
        out = self.tape.new(rows, item)
        return self.tape.step(out, (x,), (), lambda tape, node, hand: (tape.new(dims, item, parts),))

    def _times_rows(self, x: ShadowTensor, root: ShadowTensor) -> ShadowTensor:
        rows = root.dims

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            to_root = tape.like(hand[0]) if node.inputs[1] else None
            to_x = tape.like(hand[0]) if node.inputs[0] else None
            return to_x, tape.new(rows, hand[0].item) if to_root else None

        saved = ([root] if x.node else []) + ([x] if root.node else [])
        return self.tape.step(self.tape.like(x), (x, root), saved, back)

    def times_weight(self, x: ShadowTensor, weight: Weight) -> ShadowTensor:
        """A product with a vector of parameters."""

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            to_weight = tape.like(hand[0]) if node.inputs[1] else None
            to_x = tape.like(hand[0]) if node.inputs[0] else None
            return to_x, tape.new(weight.dims, weight.item) if to_weight else None

        out = self.tape.like(x, max(x.item, weight.item))
        return self.tape.step(out, (x, weight), (x,) if weight.trains else (), back)
