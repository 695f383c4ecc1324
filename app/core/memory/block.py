"""One layer's parameters on a tape, and the modules that use them: norms, linear maps with adapters, kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.core.memory.architecture import Architecture
from app.core.memory.families import Family, Matrix, fused, matrices
from app.core.memory.ops import FULL, HALF, Ops
from app.core.memory.semantics import Semantics
from app.core.memory.tape import Dims, ShadowTensor, Tape, Weight
from app.core.memory.training import Training


@dataclass(frozen=True, slots=True)
class Setting:
    """What all layers of one program share."""

    model: Architecture
    training: Training
    semantics: Semantics
    names: frozenset[str]

    @property
    def vector_item(self) -> int:
        """Bytes of a value in norms, embeddings and heads."""
        training = self.training
        raised = training.quantisation.startswith("nf4") and self.semantics.norms_in_float32
        narrowed = training.gathers_weights or training.keeps_master or training.narrow_adapters
        return FULL if raised and not narrowed else training.weight_item

    @property
    def adapter_item(self) -> int:
        """Bytes of an adapter's weight; DeepSpeed casts the whole module, adapters included."""
        return self.training.weight_item if self.training.keeps_master else self.semantics.adapter_item

    @property
    def trains_all(self) -> bool:
        return self.training.method == "full"

    @property
    def trains_norms(self) -> bool:
        return self.training.method in {"full", "norm_tuning"}


@dataclass(slots=True)
class LayerModules:
    """The modules of one layer."""

    setting: Setting
    ops: Ops
    angles: ShadowTensor | None
    mask: ShadowTensor | None
    vectors: dict[str, Weight] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    adapters: dict[str, tuple[Weight, Weight]] = field(default_factory=dict)
    matrices: dict[str, Matrix] = field(default_factory=dict)
    placed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        own = matrices(self.form)
        adapted = {each.role for each in own if each.name in self.setting.names}
        if self.fuses_late:
            own = fused(own)
            self.placed = tuple(role for role in "qkv" if role in adapted)
            adapted |= {"qkv"} if self.placed else set()
        self.matrices = {each.role: each for each in own}
        for role, matrix in self.matrices.items():
            self.weights[role] = self._weight((matrix.into, matrix.out), matrix.parts)
            if role in adapted:
                self.adapters[role] = self._adapter(matrix)
        if self.form.mixture:
            self.weights["experts_in"] = self._weight(("e", "h", "i"), 2.0)
            self.weights["experts_out"] = self._weight(("e", "h", "i"), 1.0)

    @property
    def form(self) -> Family:
        return self.setting.model.form

    @property
    def model(self) -> Architecture:
        return self.setting.model

    @property
    def attention(self) -> str:
        return self.setting.training.attention

    @property
    def fuses_late(self) -> bool:
        """Whether the framework puts projections together that the family has apart."""
        return self.setting.semantics.own_attention and not self.form.fused_qkv

    @property
    def grouped(self) -> bool:
        """Whether several query heads share one head of keys and values."""
        return self.model.kv_heads < self.model.heads

    @property
    def tape(self) -> Tape:
        return self.ops.tape

    def parameters(self) -> list[Weight]:
        """Every weight of this layer, adapters included."""
        small = [each for pair in self.adapters.values() for each in pair]
        return [*self.weights.values(), *self.vectors.values(), *small]

    def _weight(self, dims: Dims, parts: float) -> Weight:
        setting = self.setting
        packed = setting.training.method == "qlora"
        return self.tape.weight(
            dims, setting.training.weight_item, trains=setting.trains_all, parts=parts, packed=packed
        )

    def _adapter(self, matrix: Matrix) -> tuple[Weight, Weight]:
        item = self.setting.adapter_item
        down = self.tape.weight((matrix.into, "r"), item, trains=True)
        return down, self.tape.weight((matrix.out, "r"), item, trains=True, parts=matrix.parts)

    def _vector(self, name: str, dims: Dims) -> Weight:
        if name not in self.vectors:
            self.vectors[name] = self.tape.weight(dims, self.setting.vector_item, trains=self.setting.trains_norms)
        return self.vectors[name]

    # -- modules ------------------------------------------------------------------------------------------------

    def norm(self, x: ShadowTensor, name: str) -> ShadowTensor:
        """The norm of that place in the layer."""
        return self._norm(x, self._vector(name, ("h",)), ("t",))

    def head_norm(self, x: ShadowTensor, name: str) -> ShadowTensor:
        """Qwen3 and Gemma 3 norm every head of the queries and of the keys."""
        heads = "a" if name == "q" else "kv"
        return self._norm(x, self._vector(f"{name}_norm", ("d",)), ("t", heads))

    def _norm(self, x: ShadowTensor, weight: Weight, rows: Dims) -> ShadowTensor:
        ops = self.ops
        if self.form.norm == "layer":
            return ops.layer_norm(x, weight)
        given = x.item
        x = ops.cast(x, FULL)
        x = ops.normed(x, rows)
        if self.form.norm == "gemma":
            return ops.cast(ops.times_weight(x, Weight(weight.dims, FULL, weight.trains, node=weight.node)), given)
        return ops.times_weight(ops.cast(x, given), weight)

    def linear(self, role: str, x: ShadowTensor) -> ShadowTensor:
        """The matrix of that role, with its adapter where it has one."""
        matrix = self.matrices[role]
        weight, out = self.weights[role], ("t", matrix.out)
        if weight.packed and role != "router":
            result = self.ops.packed_linear(
                x,
                weight,
                out,
                matrix.parts,
                self.setting.training.weight_item,
                keeps_input=self.setting.semantics.packed_keeps_input,
                through_half=self.setting.semantics.packs_head,
                keeps_unpacked=self.setting.semantics.keeps_unpacked,
            )
        else:
            result = self.ops.linear(x, weight, out, matrix.parts)
        return self._adapted(role, x, result, out, matrix.parts) if role in self.adapters else result

    def _adapted(self, role: str, x: ShadowTensor, result: ShadowTensor, out: Dims, parts: float) -> ShadowTensor:
        ops, (down, up) = self.ops, self.adapters[role]
        given = result.item
        narrow = self.setting.training.narrow_adapters
        x = x if narrow else ops.cast(x, down.item)
        dropped = ops.dropout(x, self.setting.training.adapter_dropout)
        low = ops.linear(dropped, down, ("t", "r"), narrows=narrow)
        del dropped
        high = ops.linear(low, up, out, parts, narrows=narrow)
        del low
        if role == "qkv" and 0 < len(self.placed) < len("qkv"):
            high = ops.copied_into(high, [("t", "q" if each == "q" else "k") for each in self.placed])
        high = ops.scale(high)
        result = ops.add(result, high)
        del high
        return ops.cast(result, given)

    def held_inputs(self) -> list[ShadowTensor]:
        """Inputs of packed products of the step before, where its loss and so its graph is still held."""
        training = self.setting.training
        if not self.setting.semantics.holds_last_loss or training.method != "qlora" or training.checkpointing:
            return []
        into = [each.into for each in self.matrices.values() if each.role not in {"k", "v", "up"}]
        return [self.tape.new(("t", name), training.weight_item) for name in into]

    def rotary(self, q: ShadowTensor, k: ShadowTensor) -> tuple[ShadowTensor, ShadowTensor]:
        assert self.angles is not None
        return self.ops.rotary(q, self.angles), self.ops.rotary(k, self.angles)

    def resid_dropout(self, x: ShadowTensor) -> ShadowTensor:
        return self.ops.dropout(x, self.model.dropout)

    def gated(self, gate: ShadowTensor, up: Callable[[], ShadowTensor]) -> ShadowTensor:
        """`act(gate) * up()`, in that order."""
        active = self.ops.pointwise(gate)
        del gate
        return self.ops.mul(active, up())

    def flash(self, q: ShadowTensor, k: ShadowTensor, v: ShadowTensor) -> ShadowTensor:
        """Flash attention, which reads grouped keys and values as they are."""
        extra = self._scratch if self.setting.semantics.flash_scratch else None
        return self.ops.flash(q, k, v, extra)

    def _scratch(self, tape: Tape) -> list[ShadowTensor]:
        held = [tape.new(("t", "q"), FULL)]
        if self.grouped:
            held.append(tape.new(("t", "q"), HALF, 2.0))
        return held

    def experts(self, x: ShadowTensor) -> ShadowTensor:
        """The gated MLPs of a mixture, all tokens of all experts together."""
        ops, wide = self.ops, ("t", "m", "i")
        both = ops.linear(x, self.weights["experts_in"], wide, 2.0)
        gate, up = ops.split(both, (wide, wide))
        del both
        return ops.linear(ops.mul(ops.pointwise(gate), up), self.weights["experts_out"], x.dims)
