"""The operators of PyTorch as the tape sees them: what each allocates, keeps for the way back, and needs on it.

Read off the operators' derivative formulas (`derivatives.yaml`) and off symbolic runs of the real modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.core.memory.losses import Losses
from app.core.memory.pointwise import FULL, HALF, Grads
from app.core.memory.tape import Dims, Node, ShadowTensor, Tape, Weight

__all__ = ["FULL", "HALF", "Ops"]


class Ops(Losses):
    """Matrices, attention and parts of tensors, beside losses and what works value by value."""

    __slots__ = ()

    # -- matrices -----------------------------------------------------------------------------------------------

    def weight_for(self, weight: Weight) -> tuple[ShadowTensor | Weight, bool]:
        """The weight as the product sees it: under autocast a narrow copy, kept until autocast ends if it trains."""
        if not self.autocast or weight.item <= HALF:
            return weight, False
        if weight.cast is not None:
            return weight.cast, True
        copy = self.tape.new(weight.dims, HALF, weight.parts)
        wide = weight.item

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return (tape.like(hand[0], wide),)

        copy = self.tape.step(copy, (weight,), (), back)
        if weight.trains:
            weight.cast = copy
            self.tape.weights_cast.append(weight)
        return copy, True

    def narrowed(self, weight: Weight, item: float) -> tuple[ShadowTensor | Weight, bool]:
        """The weight as wide as what it is multiplied with: a copy for this product alone."""
        if weight.item <= item:
            return weight, False
        wide = weight.item
        copy = self.tape.new(weight.dims, item, weight.parts)
        return self.tape.step(copy, (weight,), (), lambda tape, node, hand: (tape.like(hand[0], wide),)), True

    def linear(
        self, x: ShadowTensor, weight: Weight, out: Dims, parts: float = 1.0, *, narrows: bool = False
    ) -> ShadowTensor:
        """`x @ W`, with the gradients of both. `narrows`: a weight that is wider than `x` is copied to be as narrow."""
        narrows = narrows and not self.autocast
        used, copied = self.narrowed(weight, x.item) if narrows else self.weight_for(weight)
        x = self.lowered(x)
        dims, item, in_parts = x.dims, x.item, x.parts
        shape, weight_parts = weight.dims, weight.parts

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            to_weight = tape.new(shape, item, weight_parts) if node.inputs[1] else None
            to_x = tape.new(dims, item, in_parts) if node.inputs[0] else None
            return to_x, to_weight

        saved = [x] if weight.trains else []
        if copied and x.node and isinstance(used, ShadowTensor):
            saved.append(used)
        return self.tape.step(self.tape.new(out, x.item, parts), (x, used), saved, back)

    def packed_linear(
        self,
        x: ShadowTensor,
        weight: Weight,
        out: Dims,
        parts: float,
        compute: float,
        *,
        keeps_input: bool = False,
        through_half: bool = False,
        keeps_unpacked: bool = False,
    ) -> ShadowTensor:
        """A frozen 4-bit matrix: unpacked for the product and again for the gradient. `through_half`: into float16
        first. `keeps_unpacked`: by operators of PyTorch, through 32 and 8 bits, and kept for the gradient."""
        given = x.item
        x = self.cast(x, compute)
        dims, in_parts = x.dims, x.parts
        shape, weight_parts = weight.dims, weight.parts
        copies = 2.0 if through_half and compute == HALF else 1.0
        bits = self.tape.new(shape, 5, weight_parts) if keeps_unpacked else None
        del bits
        plain = self.tape.new(shape, compute, weight_parts * copies)
        y = self.tape.new(out, compute, parts)
        saved = ([x] if keeps_input else []) + ([plain] if keeps_unpacked else [])
        del plain

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            plain = None if keeps_unpacked else tape.new(shape, compute, weight_parts * copies)
            grad = tape.new(dims, compute, in_parts)
            del plain
            return (grad,)

        y = self.tape.step(y, (x,), saved, back)
        del x, saved
        y = self.cast(y, given)
        return y if through_half else self.clone(y)  # peft clones it

    def embedding(self, weight: Weight, out: Dims) -> ShadowTensor:
        """Its gradient is as large as the table."""
        shape, item = weight.dims, weight.item
        return self.tape.step(
            self.tape.new(out, item), (weight,), (), lambda tape, node, hand: (tape.new(shape, item),)
        )

    # -- attention ----------------------------------------------------------------------------------------------

    def rotary(self, x: ShadowTensor, angles: ShadowTensor) -> ShadowTensor:
        """`x * cos + rotate_half(x) * sin`; the angles are shared by all layers and need no gradient."""
        straight = self.tape.like(x)
        negated = self.tape.like(x, parts=0.5)
        turned = self.tape.like(x)
        del negated
        sine = self.tape.like(x)
        del turned
        out = self.tape.like(x)
        del straight, sine

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return (_rotary_back(tape, hand[0]),)

        return self.tape.step(out, (x,), (angles,), back)

    def flash(
        self,
        q: ShadowTensor,
        k: ShadowTensor,
        v: ShadowTensor,
        extra: Callable[[Tape], list[ShadowTensor]] | None = None,
    ) -> ShadowTensor:
        """Keeps its inputs, its output and one float32 for each row; no score matrix."""
        q, k, v = self.lowered(q), self.lowered(k), self.lowered(v)
        out, rows = self.tape.like(q), self.tape.new(("t", "a"), FULL)

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            workspace = extra(tape) if extra is not None else None
            grads = tuple(tape.like(each) for each in node.saved[:3])
            del workspace
            return grads

        return self.tape.step(out, (q, k, v), (q, k, v, out.view(), rows), back)

    def copied_into(self, x: ShadowTensor, sources: Sequence[Dims]) -> ShadowTensor:
        """`zeros.index_copy(...)`: the gradients are shaped like the sources, which are kept for that."""
        kept = [self.tape.new(dims, x.item) for dims in sources]
        return self.tape.step(self.tape.like(x), (x,), kept, lambda tape, node, hand: (tape.like(hand[0]),))

    def repeated(self, x: ShadowTensor, groups: Dims) -> ShadowTensor:
        """Keys and values repeated for every query head of their group."""
        dims, parts = x.dims, x.parts

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return (tape.new(dims, hand[0].item, parts),)

        return self.tape.step(self.tape.new(groups, x.item), (x,), (), back)

    def product(self, a: ShadowTensor, b: ShadowTensor, out: Dims) -> ShadowTensor:
        """A batched product of two activations: keeps both."""
        a, b = self.lowered(a), self.lowered(b)

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return tuple(tape.like(each) for each in node.saved)

        return self.tape.step(self.tape.new(out, a.item), (a, b), (a, b), back)

    def softmax(self, x: ShadowTensor, item: float | None = None) -> ShadowTensor:
        """Keeps its output; on the way back CUDA writes grad x output into a temporary first."""
        x = self.raised(x)
        was = x.item
        out = self.tape.like(x, item)

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            grad = tape.like(hand[0], was)
            temporary = tape.like(hand[0]) if self.temporary_softmax else None
            del temporary
            return (grad,)

        return self.tape.step(out, (x,), (out.view(),), back)

    def plus_mask(self, x: ShadowTensor, mask: ShadowTensor) -> ShadowTensor:
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (hand[0],))

    def contiguous(self, x: ShadowTensor) -> ShadowTensor:
        """A copy of a view, so that a batched product can read it."""
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (hand[0],))

    # -- parts of one tensor ------------------------------------------------------------------------------------

    def split(self, x: ShadowTensor, shapes: Sequence[Dims], parts: float = 1.0) -> tuple[ShadowTensor, ...]:
        """Views of one tensor; on the way back their gradients are put together into one again."""
        dims, item, whole = x.dims, x.item, x.parts

        def join(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return (tape.new(dims, item, whole),)

        joined = self.tape.step(x.view(), (x,), (), join)
        if joined.node is not None:
            joined.node.collects = True
        return tuple(self._part(joined, shape, parts) for shape in shapes)

    def _part(self, x: ShadowTensor, shape: Dims, parts: float) -> ShadowTensor:
        piece = ShadowTensor(x.store, shape, x.item, parts)
        return self.tape.step(piece, (x,), (), lambda tape, node, hand: (hand[0],))

    def slices(self, x: ShadowTensor, shapes: Sequence[Dims]) -> tuple[ShadowTensor, ...]:
        """Views of one tensor, each of whose gradients is padded to the size of the whole."""
        dims, whole = x.dims, x.parts

        def padded(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return (tape.new(dims, hand[0].item, whole),)

        return tuple(self.tape.step(ShadowTensor(x.store, shape, x.item, 1.0), (x,), (), padded) for shape in shapes)

    # -- mixtures -----------------------------------------------------------------------------------------------

    def gathered(self, x: ShadowTensor, out: Dims) -> ShadowTensor:
        """Rows picked for the experts; the way back adds them into a tensor of the whole."""
        dims, parts = x.dims, x.parts
        return self.tape.step(
            self.tape.new(out, x.item), (x,), (), lambda tape, node, hand: (tape.new(dims, hand[0].item, parts),)
        )

    def weighted(self, x: ShadowTensor, chances: ShadowTensor) -> ShadowTensor:
        """Times one number for each row."""
        small = chances.dims

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            to_chances = tape.like(hand[0]) if node.inputs[1] else None
            to_x = tape.like(hand[0])
            return to_x, tape.new(small, 4) if to_chances else None

        saved = ([chances] if x.node else []) + ([x] if chances.node else [])
        return self.tape.step(self.tape.like(x), (x, chances), saved, back)

    def scattered(self, x: ShadowTensor, out: ShadowTensor) -> ShadowTensor:
        """Rows added into `out`."""
        dims = x.dims
        return self.tape.step(out, (x,), (), lambda tape, node, hand: (tape.new(dims, hand[0].item),))


def _rotary_back(tape: Tape, grad: ShadowTensor) -> ShadowTensor:
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
