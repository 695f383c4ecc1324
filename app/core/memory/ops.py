"""The operators of PyTorch as the tape sees them: what each allocates, keeps for the way back, and needs on it.

Read off the operators' derivative formulas (`derivatives.yaml`) and off symbolic runs of the real modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.core.memory.tape import Dims, Node, Tape, Tensor, Weight

Grads = Sequence[Tensor | None]
FULL, HALF = 4, 2


@dataclass(slots=True)
class Ops:
    """Operators on one tape. `half_item` is the width under autocast; without autocast nothing is cast."""

    tape: Tape
    autocast: bool
    temporary_softmax: bool = True

    # -- moving and casting -------------------------------------------------------------------------------------

    def cast(self, x: Tensor, item: float) -> Tensor:
        """`x.to(dtype)`: no step at all when it already is that wide."""
        if x.item == item:
            return x
        was = x.item

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            return (tape.like(hand[0], was),)

        return self.tape.step(self.tape.like(x, item), (x,), (), back)

    def clone(self, x: Tensor) -> Tensor:
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (hand.pop(),))

    def transposed(self, x: Tensor) -> Tensor:
        """A view whose gradient has to be made contiguous before the matrix product behind it."""
        return self.tape.step(x.view(), (x,), (), lambda tape, node, hand: (tape.like(hand[0]),))

    def lowered(self, x: Tensor) -> Tensor:
        """What autocast does to an input of a matrix product."""
        return self.cast(x, HALF) if self.autocast else x

    def raised(self, x: Tensor) -> Tensor:
        """What autocast does to an input of an operator on its float32 list."""
        return self.cast(x, FULL) if self.autocast else x

    # -- arithmetic ---------------------------------------------------------------------------------------------

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        wide, narrow_a, narrow_b = max(a.item, b.item), a.item, b.item

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            grad = hand[0]
            to_a = grad if narrow_a == wide else tape.like(grad, narrow_a)
            return to_a, grad if narrow_b == wide else tape.like(grad, narrow_b)

        return self.tape.step(self.tape.like(a, wide), (a, b), (), back)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            return tuple(None if to is None else tape.like(hand[0]) for to in node.inputs)

        saved = ([b] if a.node else []) + ([a] if b.node else [])
        return self.tape.step(self.tape.like(a, max(a.item, b.item)), (a, b), saved, back)

    def scale(self, x: Tensor) -> Tensor:
        """Times, or plus, or divided by a number."""
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (tape.like(hand[0]),))

    def plus_number(self, x: Tensor) -> Tensor:
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (hand[0],))

    def power(self, x: Tensor) -> Tensor:
        x = self.raised(x)

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            power = tape.like(hand[0])
            times = tape.like(hand[0])
            grad = tape.like(hand[0])
            del power, times
            return (grad,)

        return self.tape.step(self.tape.like(x), (x,), (x,), back)

    def pointwise(self, x: Tensor, *, keeps: str = "input") -> Tensor:
        """An activation that keeps its input (silu, gelu) or its output (tanh)."""
        out = self.tape.like(x)
        saved = (x,) if keeps == "input" else (out.view(),)
        return self.tape.step(out, (x,), saved, lambda tape, node, hand: (tape.like(hand[0]),))

    def dropout(self, x: Tensor, rate: float) -> Tensor:
        """With a mask of one byte for each value."""
        if rate <= 0:
            return x
        out, mask = self.tape.like(x), self.tape.like(x, 1)
        return self.tape.step(out, (x,), (mask,), lambda tape, node, hand: (tape.like(hand[0]),))

    # -- normalisation ------------------------------------------------------------------------------------------

    def layer_norm(self, x: Tensor, weight: Weight) -> Tensor:
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

    def normed(self, x: Tensor, rows: Dims = ("t",)) -> Tensor:
        """`x * rsqrt(mean(x ** 2))`, written out as the models write it."""
        power = self.power(x)
        mean = self._mean(power, rows)
        del power
        root = self.tape.new(rows, x.item)
        root = self.tape.step(root, (mean,), (root.view(),), lambda tape, node, hand: (tape.like(hand[0]),))
        del mean
        return self._times_rows(x, root)

    def _mean(self, x: Tensor, rows: Dims) -> Tensor:
        dims, item, parts = x.dims, x.item, x.parts
        out = self.tape.new(rows, item)
        return self.tape.step(out, (x,), (), lambda tape, node, hand: (tape.new(dims, item, parts),))

    def _times_rows(self, x: Tensor, root: Tensor) -> Tensor:
        rows = root.dims

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            to_root = tape.like(hand[0]) if node.inputs[1] else None
            to_x = tape.like(hand[0]) if node.inputs[0] else None
            return to_x, tape.new(rows, hand[0].item) if to_root else None

        saved = ([root] if x.node else []) + ([x] if root.node else [])
        return self.tape.step(self.tape.like(x), (x, root), saved, back)

    def times_weight(self, x: Tensor, weight: Weight) -> Tensor:
        """A product with a vector of parameters."""

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            to_weight = tape.like(hand[0]) if node.inputs[1] else None
            to_x = tape.like(hand[0]) if node.inputs[0] else None
            return to_x, tape.new(weight.dims, weight.item) if to_weight else None

        out = self.tape.like(x, max(x.item, weight.item))
        return self.tape.step(out, (x, weight), (x,) if weight.trains else (), back)

    # -- matrices -----------------------------------------------------------------------------------------------

    def weight_for(self, weight: Weight) -> tuple[Tensor | Weight, bool]:
        """The weight as the product sees it: under autocast a narrow copy, kept until autocast ends if it trains."""
        if not self.autocast or weight.item <= HALF:
            return weight, False
        if weight.cast is not None:
            return weight.cast, True
        copy = self.tape.new(weight.dims, HALF, weight.parts)
        wide = weight.item

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            return (tape.like(hand[0], wide),)

        copy = self.tape.step(copy, (weight,), (), back)
        if weight.trains:
            weight.cast = copy
            self.tape.weights_cast.append(weight)
        return copy, True

    def linear(self, x: Tensor, weight: Weight, out: Dims, parts: float = 1.0) -> Tensor:
        """`x @ W`, with the gradients of both."""
        used, copied = self.weight_for(weight)
        x = self.lowered(x)
        dims, item, in_parts = x.dims, x.item, x.parts
        shape, weight_parts = weight.dims, weight.parts

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            to_weight = tape.new(shape, item, weight_parts) if node.inputs[1] else None
            to_x = tape.new(dims, item, in_parts) if node.inputs[0] else None
            return to_x, to_weight

        saved = [x] if weight.trains else []
        if copied and x.node and isinstance(used, Tensor):
            saved.append(used)
        return self.tape.step(self.tape.new(out, x.item, parts), (x, used), saved, back)

    def packed_linear(self, x: Tensor, weight: Weight, out: Dims, parts: float, compute: float) -> Tensor:
        """A frozen 4-bit matrix: unpacked for the product and again for the gradient, never kept."""
        given = x.item
        x = self.cast(x, compute)
        dims, in_parts = x.dims, x.parts
        shape, weight_parts = weight.dims, weight.parts
        plain = self.tape.new(shape, compute, weight_parts)
        y = self.tape.new(out, compute, parts)
        del plain

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            plain = tape.new(shape, compute, weight_parts)
            grad = tape.new(dims, compute, in_parts)
            del plain
            return (grad,)

        y = self.tape.step(y, (x,), (), back)
        del x
        return self.clone(self.cast(y, given))

    def embedding(self, weight: Weight, out: Dims) -> Tensor:
        """Its gradient is as large as the table."""
        shape, item = weight.dims, weight.item
        return self.tape.step(
            self.tape.new(out, item), (weight,), (), lambda tape, node, hand: (tape.new(shape, item),)
        )

    # -- attention ----------------------------------------------------------------------------------------------

    def rotary(self, x: Tensor, angles: Tensor) -> Tensor:
        """`x * cos + rotate_half(x) * sin`; the angles are shared by all layers and need no gradient."""
        straight = self.tape.like(x)
        negated = self.tape.like(x, parts=0.5)
        turned = self.tape.like(x)
        del negated
        sine = self.tape.like(x)
        del turned
        out = self.tape.like(x)
        del straight, sine

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            return (_rotary_back(tape, hand[0]),)

        return self.tape.step(out, (x,), (angles,), back)

    def flash(self, q: Tensor, k: Tensor, v: Tensor, extra: Callable[[Tape], list[Tensor]] | None = None) -> Tensor:
        """Keeps its inputs, its output and one float32 for each row; no score matrix."""
        q, k, v = self.lowered(q), self.lowered(k), self.lowered(v)
        out, rows = self.tape.like(q), self.tape.new(("t", "a"), FULL)

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            workspace = extra(tape) if extra is not None else None
            grads = tuple(tape.like(each) for each in node.saved[:3])
            del workspace
            return grads

        return self.tape.step(out, (q, k, v), (q, k, v, out.view(), rows), back)

    def repeated(self, x: Tensor, groups: Dims) -> Tensor:
        """Keys and values repeated for every query head of their group."""
        dims, parts = x.dims, x.parts

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            return (tape.new(dims, hand[0].item, parts),)

        return self.tape.step(self.tape.new(groups, x.item), (x,), (), back)

    def product(self, a: Tensor, b: Tensor, out: Dims) -> Tensor:
        """A batched product of two activations: keeps both."""
        a, b = self.lowered(a), self.lowered(b)

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            return tuple(tape.like(each) for each in node.saved)

        return self.tape.step(self.tape.new(out, a.item), (a, b), (a, b), back)

    def softmax(self, x: Tensor, item: float | None = None) -> Tensor:
        """Keeps its output; on the way back CUDA writes grad x output into a temporary first."""
        x = self.raised(x)
        was = x.item
        out = self.tape.like(x, item)

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            grad = tape.like(hand[0], was)
            temporary = tape.like(hand[0]) if self.temporary_softmax else None
            del temporary
            return (grad,)

        return self.tape.step(out, (x,), (out.view(),), back)

    def plus_mask(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (hand[0],))

    def contiguous(self, x: Tensor) -> Tensor:
        """A copy of a view, so that a batched product can read it."""
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (hand[0],))

    # -- parts of one tensor ------------------------------------------------------------------------------------

    def split(self, x: Tensor, shapes: Sequence[Dims], parts: float = 1.0) -> tuple[Tensor, ...]:
        """Views of one tensor; on the way back their gradients are put together into one again."""
        dims, item, whole = x.dims, x.item, x.parts

        def join(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            return (tape.new(dims, item, whole),)

        joined = self.tape.step(x.view(), (x,), (), join)
        if joined.node is not None:
            joined.node.collects = True
        return tuple(self._part(joined, shape, parts) for shape in shapes)

    def _part(self, x: Tensor, shape: Dims, parts: float) -> Tensor:
        piece = Tensor(x.store, shape, x.item, parts)
        return self.tape.step(piece, (x,), (), lambda tape, node, hand: (hand[0],))

    def slices(self, x: Tensor, shapes: Sequence[Dims]) -> tuple[Tensor, ...]:
        """Views of one tensor, each of whose gradients is padded to the size of the whole."""
        dims, whole = x.dims, x.parts

        def padded(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            return (tape.new(dims, hand[0].item, whole),)

        return tuple(self.tape.step(Tensor(x.store, shape, x.item, 1.0), (x,), (), padded) for shape in shapes)

    # -- mixtures -----------------------------------------------------------------------------------------------

    def gathered(self, x: Tensor, out: Dims) -> Tensor:
        """Rows picked for the experts; the way back adds them into a tensor of the whole."""
        dims, parts = x.dims, x.parts
        return self.tape.step(
            self.tape.new(out, x.item), (x,), (), lambda tape, node, hand: (tape.new(dims, hand[0].item, parts),)
        )

    def weighted(self, x: Tensor, chances: Tensor) -> Tensor:
        """Times one number for each row."""
        small = chances.dims

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            to_chances = tape.like(hand[0]) if node.inputs[1] else None
            to_x = tape.like(hand[0])
            return to_x, tape.new(small, 4) if to_chances else None

        saved = ([chances] if x.node else []) + ([x] if chances.node else [])
        return self.tape.step(self.tape.like(x), (x, chances), saved, back)

    def scattered(self, x: Tensor, out: Tensor) -> Tensor:
        """Rows added into `out`."""
        dims = x.dims
        return self.tape.step(out, (x,), (), lambda tape, node, hand: (tape.new(dims, hand[0].item),))

    # -- loss ---------------------------------------------------------------------------------------------------

    def shifted(self, x: Tensor) -> Tensor:
        """`x[..., :-1, :].contiguous()`; its gradient is padded to the size of `x` again."""
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (tape.like(hand[0]),))

    def cross_entropy(self, logits: Tensor, item: float = FULL) -> Tensor:
        """The scalar loss; keeps the log-probabilities, in float32 unless the model leaves them narrow."""
        logits = self.cast(logits, item)
        chances = self.tape.like(logits)

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            picked = tape.like(node.saved[0])
            grad = tape.like(node.saved[0])
            del picked
            return (grad,)

        return self.tape.step(self.tape.new((), FULL), (logits,), (chances,), back)

    def in_place_loss(self, logits: Tensor) -> Tensor:
        """A kernel that keeps the logits and writes their gradient over them."""
        return self.tape.step(self.tape.new((), FULL), (logits,), (logits,), lambda tape, node, hand: (node.saved[0],))

    def chunked_loss(self, x: Tensor, weight: Weight, kind: str) -> Tensor:
        """Logits of a part of the tokens at a time. `fused` works out both gradients on the way forward."""
        dims, item, shape, weight_item = x.dims, x.item, weight.dims, weight.item
        part = self.tape.new(("c", "V"), x.item)
        wide = self.tape.new(("c", "V"), FULL)
        chances = self.tape.new(("c", "V"), FULL)
        kept = [self.tape.like(x)] if kind == "fused" else [x]
        if kind == "fused" and weight.trains:
            kept.append(self.tape.new(shape, weight_item))
        del part, wide, chances

        def back(tape: Tape, node: Node, hand: list[Tensor]) -> Grads:
            if kind == "fused":
                return node.saved[0], node.saved[-1] if node.inputs[1] else None
            scratch = tape.new(("c", "V"), FULL, 3.0)
            to_x = tape.new(dims, item)
            to_weight = tape.new(shape, weight_item) if node.inputs[1] else None
            del scratch
            return to_x, to_weight

        return self.tape.step(self.tape.new((), FULL), (x, weight), kept, back)


def _rotary_back(tape: Tape, grad: Tensor) -> Tensor:
    sine = tape.like(grad)
    negated = tape.like(grad, parts=0.5)
    first = tape.like(grad)
    del negated
    second = tape.like(grad)
    del sine
    turned = tape.like(grad)
    del first, second
    straight = tape.like(grad)
    total = tape.like(grad)
    del turned, straight
    return total
