"""A shadow of PyTorch's autograd that moves sizes instead of numbers.

The steps of a layer are written down once as a program (`ops`, `layers`); running it on this tape allocates and frees
shadow tensors in the order in which PyTorch would, and every allocation notes what is alive as a linear form over
products of dimensions ("tokens x hidden", "heads x tokens x sequence"). A prediction later puts numbers into the forms
and takes the largest value: no step is run again.

A storage is released when the last shadow tensor on it goes, as in PyTorch: both lean on reference counts.
"""

from __future__ import annotations

import contextlib
import heapq
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Dims = tuple[str, ...]
"""Names of dimensions, multiplied. `("t", "h")` is tokens x hidden."""


class Storage:
    """Bytes that are alive from here until nothing refers to them."""

    __slots__ = ("_bytes", "_slot", "_tape")

    def __init__(self, tape: Tape, dims: Dims, size: float) -> None:
        self._tape, self._slot, self._bytes = tape, tape.slot(dims), size
        tape.grow(self._slot, size)

    def __del__(self) -> None:
        self._tape.shrink(self._slot, self._bytes)


class ShadowTensor:
    """A shadow tensor: `item` bytes for each element of `dims` (times `parts`), and the step that made it."""

    __slots__ = ("dims", "item", "node", "parts", "store")

    def __init__(self, store: Storage | None, dims: Dims, item: float, parts: float, node: Node | None = None) -> None:
        self.store, self.dims, self.item, self.parts, self.node = store, dims, item, parts, node

    def view(self) -> ShadowTensor:
        """The same bytes, seen otherwise."""
        return ShadowTensor(self.store, self.dims, self.item, self.parts, self.node)


Backward = Callable[["Tape", "Node", list[ShadowTensor]], Sequence["ShadowTensor | None"]]


class Node:
    """One step that gradients pass through, in the order in which it was made."""

    __slots__ = ("backward", "collects", "frame", "inputs", "layer", "order", "saved")

    def __init__(
        self,
        order: int,
        inputs: Sequence[Node | None],
        saved: Sequence[ShadowTensor],
        backward: Backward,
        layer: int | None = None,
    ) -> None:
        self.order, self.inputs, self.saved, self.backward = order, list(inputs), list(saved), backward
        self.layer = layer
        self.frame: CheckpointedStretch | None = None
        self.collects = False

    def __lt__(self, other: Node) -> bool:
        return self.order > other.order


class CheckpointedStretch:
    """A checkpointed stretch: what it needs to run again, and the steps whose saved tensors that will bring back."""

    __slots__ = ("again", "filled", "steps")

    def __init__(self, again: Callable[[], None]) -> None:
        self.again: Callable[[], None] | None = again
        self.steps: list[Node] = []
        self.filled = 0


class _Complete(Exception):
    """Everything that was dropped is back: PyTorch stops running the stretch again here."""


@dataclass(eq=False, slots=True)
class Weight:
    """A parameter: its bytes are counted with the model, its gradient here."""

    dims: Dims
    item: float
    trains: bool
    parts: float = 1.0
    packed: bool = False
    grad: ShadowTensor | None = None
    node: Node | None = None
    cast: ShadowTensor | None = None


@dataclass(frozen=True, slots=True)
class TapeMoment:
    """What was alive at one moment: `phase`, the layer at work (-1 outside the layers) and bytes per slot."""

    phase: str
    layer: int
    live: tuple[float, ...]


class Tape:
    """Counts what is alive, and plays the steps backwards as PyTorch's engine does."""

    def __init__(self, *, adds_in_place: bool, keeps_gradients: bool = True) -> None:
        self.slots: dict[Dims, int] = {}
        self.live: list[float] = []
        self.events: list[TapeMoment] = []
        self.weights: list[Weight] = []
        self.weights_cast: list[Weight] = []
        self.boundaries: dict[tuple[str, int], tuple[float, ...]] = {}
        self.phase, self.layer = "forward", -1
        self._adds_in_place = adds_in_place
        self.keeps_gradients = keeps_gradients
        self._order = 0
        self._dropping: CheckpointedStretch | None = None
        self._filling: CheckpointedStretch | None = None

    def slot(self, dims: Dims) -> int:
        """The column of one product of dimensions."""
        key = tuple(sorted(dims))
        if key not in self.slots:
            self.slots[key] = len(self.live)
            self.live.append(0.0)
        return self.slots[key]

    def grow(self, slot: int, size: float) -> None:
        self.live[slot] += size
        self.note()

    def shrink(self, slot: int, size: float) -> None:
        self.live[slot] -= size

    def note(self) -> None:
        """Remembers what is alive now."""
        self.events.append(TapeMoment(self.phase, self.layer, tuple(self.live)))

    def new(self, dims: Dims, item: float, parts: float = 1.0) -> ShadowTensor:
        """An allocation."""
        return ShadowTensor(Storage(self, dims, item * parts), dims, item, parts)

    def like(self, tensor: ShadowTensor, item: float | None = None, parts: float = 1.0) -> ShadowTensor:
        """An allocation of the shape of `tensor`, or of `parts` of it."""
        return self.new(tensor.dims, tensor.item if item is None else item, tensor.parts * parts)

    def weight(self, dims: Dims, item: float, *, trains: bool, parts: float = 1.0, packed: bool = False) -> Weight:
        """A parameter; one that trains collects its gradient during `backward`."""
        weight = Weight(dims, item, trains, parts, packed)
        if trains:
            weight.node = Node(sys.maxsize, (), (), _collector(weight))
            self.weights.append(weight)
        return weight

    def require_gradient(self, x: ShadowTensor) -> None:
        """`x.requires_grad_()`: steps after it are kept although nothing before it trains; its node holds it."""
        self._order += 1
        x.node = Node(self._order, (), (ShadowTensor(x.store, x.dims, x.item, x.parts),), lambda tape, node, hand: ())

    def step(
        self,
        out: ShadowTensor,
        inputs: Sequence[ShadowTensor | Weight | None],
        saved: Sequence[ShadowTensor],
        backward: Backward,
    ) -> ShadowTensor:
        """Makes `out` the result of a step, if a gradient can pass through it; only then is `saved` kept."""
        nodes = [each.node if each is not None else None for each in inputs]
        if all(node is None for node in nodes):
            return out
        self._order += 1
        if self._filling is not None:
            self._fill(self._filling, saved)
            out.node = Node(self._order, (), saved, backward)
            return out
        out.node = Node(self._order, nodes, () if self._dropping else saved, backward, self.layer)
        if self._dropping is not None and saved:
            out.node.frame = self._dropping
            self._dropping.steps.append(out.node)
        return out

    def checkpoint(self, stretch: Callable[[ShadowTensor], ShadowTensor], x: ShadowTensor) -> ShadowTensor:
        """Runs `stretch` and keeps only `x` of it; the rest comes back when the way back first needs it."""

        def again() -> None:
            stretch(x.view())

        self._dropping = CheckpointedStretch(again)
        out = stretch(x)
        self._dropping = None
        return out

    def _fill(self, frame: CheckpointedStretch, saved: Sequence[ShadowTensor]) -> None:
        if not saved:
            return
        frame.steps[frame.filled].saved = list(saved)
        frame.filled += 1
        if frame.filled == len(frame.steps):
            raise _Complete

    def _restore(self, frame: CheckpointedStretch) -> None:
        again, frame.again = frame.again, None
        if again is None:
            return
        self._filling, frame.filled = frame, 0
        with contextlib.suppress(_Complete):
            again()
        self._filling = None
        for weight in self.weights_cast:
            weight.cast = None
        self.weights_cast.clear()

    def backward(self, root: ShadowTensor, grad: ShadowTensor) -> None:
        """Plays the steps behind `root` in reverse; `root` and `grad` must not be held by the caller's caller."""
        node = root.node
        assert node is not None, "nothing trains: there is no way back"
        del root
        ready: list[Node] = [node]
        waiting: dict[Node, list[ShadowTensor]] = {node: [grad]}
        open_edges = _edges_into(node)
        del grad, node
        while ready:
            step = heapq.heappop(ready)
            self._enter(step)
            grads = list(step.backward(self, step, waiting.pop(step)))
            step.saved.clear()
            for position, target in enumerate(step.inputs):
                if target is None:
                    continue
                given, grads[position] = (grads[position], None) if grads else (None, None)
                if given is not None:
                    self._deliver(target, given, waiting)
                del given
                open_edges[target] -= 1
                if not open_edges[target] and target in waiting:
                    heapq.heappush(ready, target)
            step.inputs.clear()

    def _enter(self, step: Node) -> None:
        if step.layer is not None and step.layer != self.layer:
            self.layer = step.layer
            self.boundaries[self.phase, step.layer] = tuple(self.live)
        if step.frame is not None:
            self._restore(step.frame)

    def _deliver(self, target: Node, given: ShadowTensor, waiting: dict[Node, list[ShadowTensor]]) -> None:
        if target not in waiting:
            waiting[target] = [given]
            return
        if target.collects:
            waiting[target].append(given)
            return
        held = waiting[target].pop()
        alone = (sys.getrefcount(held), sys.getrefcount(held.store)) == _ALONE
        waiting[target].append(held if self._adds_in_place and alone else self.like(held))


def _references_of_one() -> tuple[int, int]:
    """What the interpreter counts for a tensor in one local variable, and for its storage: versions differ."""
    held = ShadowTensor(Storage(Tape(adds_in_place=True), (), 0), (), 0, 1)
    return sys.getrefcount(held), sys.getrefcount(held.store)


_ALONE = _references_of_one()


def _edges_into(root: Node) -> dict[Node, int]:
    """How many gradients each step behind `root` has to wait for."""
    edges: dict[Node, int] = {root: 0}
    pending = [root]
    while pending:
        for target in pending.pop().inputs:
            if target is None:
                continue
            if target not in edges:
                edges[target] = 0
                pending.append(target)
            edges[target] += 1
    return edges


def _collector(weight: Weight) -> Backward:
    def collect(tape: Tape, node: Node, hand: list[ShadowTensor]) -> Sequence[ShadowTensor | None]:
        given = hand.pop()
        if weight.grad is None and tape.keeps_gradients:
            weight.grad = given
        return ()

    return collect
