"""Losses over logits: what each allocates, keeps for the way back, and needs on it."""

from __future__ import annotations

from app.core.memory.pointwise import FULL, Grads, Pointwise
from app.core.memory.tape import Node, ShadowTensor, Tape, Weight


class Losses(Pointwise):
    """Losses, beside what works value by value."""

    __slots__ = ()

    def shifted(self, x: ShadowTensor) -> ShadowTensor:
        """`x[..., :-1, :].contiguous()`; its gradient is padded to the size of `x` again."""
        return self.tape.step(self.tape.like(x), (x,), (), lambda tape, node, hand: (tape.like(hand[0]),))

    def cross_entropy(self, logits: ShadowTensor, item: float = FULL) -> ShadowTensor:
        """The scalar loss; keeps the log-probabilities, in float32 unless the model leaves them narrow."""
        logits = self.cast(logits, item)
        chances = self.tape.like(logits)

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            picked = tape.like(node.saved[0])
            grad = tape.like(node.saved[0])
            del picked
            return (grad,)

        return self.tape.step(self.tape.new((), FULL), (logits,), (chances,), back)

    def in_place_loss(self, logits: ShadowTensor) -> ShadowTensor:
        """A kernel that keeps the logits and writes their gradient over them."""
        return self.tape.step(self.tape.new((), FULL), (logits,), (logits,), lambda tape, node, hand: (node.saved[0],))

    def loss_by_parts(self, logits: ShadowTensor, head: Node | None) -> ShadowTensor:
        """A loss by parts over logits that are all there, in their own width. The gradient of one part goes back
        through the head while the log-probabilities of the others wait."""
        chances, item = self.tape.like(logits), logits.item
        if head is not None:
            head.saved.append(chances.view())

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            return (tape.new(("c", "V"), item),)

        return self.tape.step(self.tape.new((), FULL), (logits,), (chances, logits), back)

    def chunked_loss(self, x: ShadowTensor, weight: Weight, kind: str) -> ShadowTensor:
        """Logits of a part of the tokens at a time. `fused` works out both gradients on the way forward."""
        dims, item, shape, weight_item = x.dims, x.item, weight.dims, weight.item
        part = self.tape.new(("c", "V"), x.item)
        wide = self.tape.new(("c", "V"), FULL)
        chances = self.tape.new(("c", "V"), FULL)
        kept = [self.tape.like(x)] if kind == "fused" else [x]
        if kind == "fused" and weight.trains:
            kept.append(self.tape.new(shape, weight_item))
        del part, wide, chances

        def back(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Grads:
            if kind == "fused":
                return node.saved[0], node.saved[-1] if node.inputs[1] else None
            scratch = tape.new(("c", "V"), FULL, 3.0)
            to_x = tape.new(dims, item)
            to_weight = tape.new(shape, weight_item) if node.inputs[1] else None
            del scratch
            return to_x, to_weight

        return self.tape.step(self.tape.new((), FULL), (x, weight), kept, back)
