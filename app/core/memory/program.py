"""One step of training on the tape, compiled into linear forms of the dimensions.

Only the first, one middle and the last layer are run: what every further layer adds while it waits (its kept tensors)
and when it is done (its gradients) is the difference between two of them, so a deep model costs no more than three.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.core.memory.block import LayerModules, Setting
from app.core.memory.layers import LAYERS
from app.core.memory.ops import FULL, Ops
from app.core.memory.tape import Dims, ShadowTensor, Tape, TapeMoment, Weight

Forms = NDArray[np.float64]
SAMPLE_LAYERS = 3


@dataclass(frozen=True, slots=True)
class PeakForms:
    """`forms @ sizes` are candidates for the peak above what is resident, in bytes, by phase.

    The columns are the products in `slots`, first once and then once more times the number of layers beyond `layers`.
    """

    slots: tuple[Dims, ...]
    layers: int
    forward: Forms
    turn: Forms
    backward: Forms


class Step:
    """Runs one step of training of a short model on a tape."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.tape = Tape(
            adds_in_place=setting.semantics.adds_in_place, keeps_gradients=setting.training.gradients_gather
        )
        self.ops = Ops(self.tape, setting.training.casts)
        self.layers = min(setting.model.layers, SAMPLE_LAYERS)
        self.table = self._outer(("V", "h"))
        self.masks: list[ShadowTensor] = []
        self.before: list[ShadowTensor] = []
        self.angles: ShadowTensor | None = None
        self.blocks = [LayerModules(setting, self.ops, None, None) for _ in range(self.layers)]
        self.last_norm = LayerModules(setting, self.ops, None, None)

    def _outer(self, dims: Dims) -> Weight:
        return self.tape.weight(dims, self.setting.vector_item, trains=self.setting.trains_all)

    def run(self) -> None:
        """Forward with the loss, then back."""
        tape = self.tape
        loss, held = self._forward()
        self.before.clear()
        for weight in tape.weights_cast:
            weight.cast = None
        tape.weights_cast.clear()
        tape.phase = "backward"
        if not (self.setting.semantics.keeps_logits or self._narrow):
            del held
        tape.backward(loss, tape.new((), FULL))

    def _forward(self) -> tuple[ShadowTensor, ShadowTensor | None]:
        x = embedded = self._embedded()
        for number, block in enumerate(self.blocks):
            self.tape.layer = number
            self.tape.boundaries["forward", number] = tuple(self.tape.live)
            block.angles, block.mask = self.angles, self.masks[0] if self.masks else None
            self.before += block.held_inputs()
            layer = LAYERS[self.setting.model.form.style]
            if self.setting.training.checkpointing:
                x = self.tape.checkpoint(partial(layer, block), x)
            else:
                x = layer(block, x)
        self.tape.layer = self.layers
        if self.setting.model.form.final_norm:
            x = self.last_norm.norm(x, "last")
        del embedded
        return self._loss(x)

    def _embedded(self) -> ShadowTensor:
        form, ops, tape = self.setting.model.form, self.ops, self.tape
        x = self._patches() if form.head == "image" else ops.embedding(self.table, ("t", "h"))
        if form.scaled_embedding:
            x = ops.scale(x)
        if x.node is None and self.setting.training.checkpointing:  # `enable_input_require_grads`
            tape.require_gradient(x)
        if form.head == "image":
            x = ops.contiguous(ops.cast(x, self.table.item))  # behind the token of the class, which is not narrowed
        if form.style == "post":
            if form.head != "distilbert":
                x = ops.add(x, tape.new(("t", "h"), x.item))
            x = self.last_norm.norm(ops.add(x, tape.new(("s", "h"), x.item)), "embedding")
        elif form.learned_positions:
            x = ops.add(x, tape.new(("s", "h"), x.item))
        if form.style in {"post", "gpt2", "vision"}:
            x = ops.dropout(x, self.setting.model.dropout)
        if form.style in {"rotary", "parallel"}:
            self.angles = tape.new(("s", "d"), x.item, 2.0)
        if self.setting.training.attention == "eager" and form.style in {"rotary", "parallel", "gpt2"}:
            self.masks = [tape.new(("b", "s", "s"), x.item) for _ in range(2 if form.norms == 4 else 1)]
        return x

    def _patches(self) -> ShadowTensor:
        """Of images in float32, which lie beside the program: the model's own variable is of the weights' type."""
        pixels = ShadowTensor(None, ("b", "y"), FULL, 1.0)
        pixels = self.ops.cast(pixels, self.setting.training.weight_item)
        self.before.append(pixels)
        return self.ops.linear(pixels, self._outer(("x", "h")), ("t", "h"))

    def _loss(self, x: ShadowTensor) -> tuple[ShadowTensor, ShadowTensor | None]:
        model, ops = self.setting.model, self.ops
        if model.form.head not in {"lm", "lm_bias"}:
            return self._classified(x), None
        weight = self.table if model.tied else self._outer(("V", "h"))
        if self.setting.training.loss != "full":
            return self._loss_in_parts(x, weight)
        logits = ops.linear(x, weight, ("t", "V"))
        if not self.setting.semantics.shifts_logits:
            del x
        logits = self._capped(logits)
        semantics = self.setting.semantics
        if semantics.loss_in_place:
            logits = ops.cast(logits, FULL)
            return ops.in_place_loss(ops.shifted(logits)), logits
        if not semantics.shifts_logits:
            return ops.cross_entropy(logits), logits
        if model.form.old_loss == "rebinds":
            logits = ops.cast(logits, FULL)
        loss = self._shifted_loss(logits)
        return loss, ops.raised(logits) if self._narrow else logits

    def _loss_in_parts(self, x: ShadowTensor, weight: Weight) -> tuple[ShadowTensor, ShadowTensor | None]:
        kind = self.setting.training.loss
        if kind == "chunked" and self.setting.semantics.holds_all_logits:
            headed = self._headed(x, weight)
            logits, head = self._capped(headed), headed.node
            del headed
            return self.ops.loss_by_parts(logits, head), logits
        if kind == "recomputed":
            return self._loss_by_chunks(x, weight), None
        return self.ops.chunked_loss(x, weight, kind), None

    def _loss_by_chunks(self, x: ShadowTensor, weight: Weight) -> ShadowTensor:
        """The last chunk and one for all others: each of these is computed again on the way back and gone before the
        next. What is learned is picked first; each chunk's gradient is counted as large as that of all that is."""
        ops = self.ops

        def loss(part: ShadowTensor) -> ShadowTensor:
            logits = self._capped(ops.linear(part, weight, ("c", "V")))  # held until first guesses are taken of them
            return ops.cross_entropy(logits)

        picked = ops.gathered(x, x.dims)
        del x
        first, last = ops.slices(picked, (("c", "h"), ("c", "h")))
        del picked
        return ops.add(self.tape.checkpoint(loss, first), loss(last))

    def _headed(self, x: ShadowTensor, weight: Weight) -> ShadowTensor:
        """Logits from a head that may be quantised."""
        training, shape = self.setting.training, ("t", "V")
        if training.method != "qlora" or not self.setting.semantics.packs_head:
            return self.ops.linear(x, weight, shape)
        keeps = self.setting.semantics.packed_keeps_input
        return self.ops.packed_linear(x, weight, shape, 1.0, training.weight_item, keeps_input=keeps, through_half=True)

    def _capped(self, logits: ShadowTensor) -> ShadowTensor:
        """Gemma 2 bends its logits."""
        if not self.setting.model.form.softcap:
            return logits
        logits = self.ops.scale(logits)
        logits = self.ops.pointwise(logits, keeps="output")
        return self.ops.scale(logits)

    @property
    def _narrow(self) -> bool:
        """Models that return their logits as they are, which the caller then holds during the way back."""
        return self.setting.semantics.shifts_logits and self.setting.model.form.old_loss == "narrow"

    def _shifted_loss(self, logits: ShadowTensor) -> ShadowTensor:
        """The loss of transformers 4: the caller's logits stay while a float32 copy is shifted into another."""
        ops = self.ops
        if self.setting.model.form.old_loss == "narrow" and not ops.autocast:
            return ops.cross_entropy(ops.shifted(logits), logits.item)
        wide = ops.cast(logits, FULL)
        return ops.cross_entropy(ops.shifted(wide))

    def _classified(self, x: ShadowTensor) -> ShadowTensor:
        """The head reads one row of every sequence; its gradient has the size of all rows."""
        dims, item = x.dims, x.item
        picked = self.tape.step(
            self.tape.new(("b", "h"), item), (x,), (), lambda tape, node, hand: (tape.new(dims, item),)
        )
        del x
        pooled = self.ops.linear(picked, self._outer(("h", "h")), ("b", "h"))
        return self.ops.linear(pooled, self._outer(("h", "n")), ("b", "n"))


def compiled(setting: Setting) -> PeakForms:
    """Runs a short model once and turns what was alive at each moment into linear forms."""
    step = Step(setting)
    step.run()
    tape, layers = step.tape, step.layers
    width = len(tape.live)
    waits, kept, done = _growth(step, width)
    rows: dict[str, list[Forms]] = {"forward": [], "turn": [], "backward": []}
    for event in tape.events:
        base = _padded(event.live, width)
        for more in _further(event, layers, waits, kept, done):
            turning = event.phase == "backward" and event.layer == layers
            rows["turn" if turning else event.phase].append(np.concatenate((base, more)))
    slots = tuple(sorted(tape.slots, key=lambda dims: tape.slots[dims]))
    program = PeakForms(slots, layers, *(leading(np.array(rows[phase])) for phase in ("forward", "turn", "backward")))
    del step
    return program


def _growth(step: Step, width: int) -> tuple[Forms, Forms, Forms]:
    """What one more layer adds: during the forward pass, while it waits for the way back, and after that."""
    if step.layers < SAMPLE_LAYERS:
        return np.zeros(width), np.zeros(width), np.zeros(width)
    edge = {key: _padded(live, width) for key, live in step.tape.boundaries.items()}
    done = np.zeros(width)
    for weight in step.blocks[1].parameters():
        if weight.grad is not None:
            done[step.tape.slot(weight.grad.dims)] += weight.grad.item * weight.grad.parts
    waits = edge["forward", 2] - edge["forward", 1]
    return waits, done - (edge["backward", 0] - edge["backward", 1]), done


def _further(event: TapeMoment, layers: int, waits: Forms, kept: Forms, done: Forms) -> list[Forms]:
    """What the layers that were not run add at this moment."""
    if event.phase == "forward":
        return [waits if event.layer >= layers - 1 else np.zeros_like(waits)]
    if event.layer <= 0:
        return [done]
    return [kept, done] if event.layer == 1 else [kept]


def _padded(live: tuple[float, ...], width: int) -> Forms:
    return np.array(live + (0.0,) * (width - len(live)))


def leading(table: Forms) -> Forms:
    """Without the rows that another row covers in every column."""
    table = np.unique(table, axis=0)
    table = table[np.argsort(-table.sum(axis=1), kind="stable")]
    best = np.empty_like(table)
    kept = 0
    for row in table:
        if not (best[:kept] >= row).all(axis=1).any():
            best[kept] = row
            kept += 1
    return best[:kept]
