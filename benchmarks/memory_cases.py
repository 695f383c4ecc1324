"""Reads cases of GPU memory use: rows of a CSV file, as a model, a training configuration and a semantics profile."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.core.memory import MODELS, PROFILES, Architecture, Semantics, Training
from app.core.memory.families import FAMILIES, matrices
from benchmarks import memory_sources
from benchmarks.memory_sources import ATTENTION

_QUANTISATIONS = {"none": "none", "nf4": "nf4", "nf4-dq": "nf4_dq", "nf4-ao": "nf4_ao", "gptq-int4": "gptq_int4"}
_SHARDING = {"none": "none", "fsdp_full_shard": "fsdp", "zero2": "zero2", "zero3": "zero3"}
_ROLES: Mapping[str, tuple[str, ...]] = {
    "q_proj": ("q", "qkv"),
    "k_proj": ("k", "qkv"),
    "v_proj": ("v", "qkv"),
    "o_proj": ("o",),
    "mlp": ("gate", "up", "down", "gate_up"),
    "c_attn": ("qkv",),
    "attn.c_proj": ("o",),
    "w1": ("up",),
    "w2": ("gate",),
    "mlp.c_proj": ("down",),
}
_ALIKE = {"minicpm": "llama"}
"""Families that differ from another in no size: MiniCPM is a Llama with scaled residuals."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run. `strong` marks those that the goal counts, `metric` says what was read."""

    model: Architecture
    training: Training
    semantics: Semantics
    measured_bytes: int
    metric: str
    strong: bool
    group: str
    label: str


def symbolic_cases(path: Path) -> list[Case]:
    """Every row of a file of symbolic runs."""
    shapes = _shapes(path)
    with path.open(newline="") as file:
        return [_symbolic(row, shapes) for row in csv.DictReader(file)]


def measured_cases(path: Path) -> tuple[list[Case], list[str]]:
    """The complete rows of a file of measured runs, and those that are about models which the predictor has not."""
    cases, left_out = [], []
    shapes = _shapes(path)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["complete"] != "yes":
                continue
            if row["model"] in shapes:
                cases.append(_measured(row, shapes[row["model"]]))
            else:
                left_out.append(f"{row['case_id']} {row['model']}")
    return cases, left_out


def _shapes(path: Path) -> dict[str, Architecture]:
    """The built-in table, and what `models.json` beside the file adds."""
    shapes = dict(MODELS)
    beside = path.parent / "models.json"
    if beside.exists():
        for name, found in json.loads(beside.read_text()).items():
            family = _ALIKE.get(found["model_type"], found["model_type"])
            if name not in shapes and family in FAMILIES and "hidden" in found:
                shapes[name] = _shape(family, found)
    return shapes


def _shape(family: str, found: Mapping[str, Any]) -> Architecture:
    names = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "tied")
    return Architecture(
        family=family,
        **{name: found[name] for name in names},
        experts=found.get("experts", 1),
        experts_per_token=found.get("experts_per_token", 1),
        positions=2048 if FAMILIES[family].learned_positions else 0,
    )


def _symbolic(row: Mapping[str, str], shapes: Mapping[str, Architecture]) -> Case:
    model = shapes[row["model"]]
    if row["layers"]:
        model = model.with_layers(int(row["layers"]))
    needed = int(row["seq"])
    if model.form.learned_positions and model.positions < needed:
        model = replace(model, positions=needed)
    double = row["double_quant"] != "False"
    training = Training(
        method=row["method"],  # type: ignore[arg-type]  # a word of the file, checked when it is used
        precision=row["precision"],  # type: ignore[arg-type]  # a word of the file, checked when it is used
        autocast=row["autocast"] == "True",
        batch=int(row["batch"]),
        sequence=needed,
        optimizer=row["optimizer"],  # type: ignore[arg-type]  # a word of the file, checked when it is used
        checkpointing=row["ckpt"] == "True",
        attention=ATTENTION[row["attn"]],  # type: ignore[arg-type]  # a word of the file, checked when it is used
        rank=int(row["lora_r"] or 16),
        targets=_symbolic_targets(row["lora_targets"]),
        adapter_dropout=float(row["lora_dropout"] or 0),
        quantisation=("nf4_dq" if double else "nf4") if row["method"] == "qlora" else "none",
    )
    label = " ".join(row[name] for name in ("model", "method", "precision", "batch", "seq", "optimizer", "ckpt"))
    return Case(
        model,
        training,
        PROFILES["symbolic-1"],
        int(row["peak_bytes"]),
        "torch_allocated",
        strong=True,
        group=f"{row['method']}/symbolic/torch_allocated",
        label=label,
    )


def _symbolic_targets(text: str) -> frozenset[str]:
    named = {"": "all", "attn": "attention"}.get(text, text)
    return frozenset(named.split("+"))


def _measured(row: Mapping[str, str], model: Architecture) -> Case:
    family = row["framework"].split()[0]
    label = " ".join(row[n] for n in ("case_id", "framework", "model", "method", "batch", "seq", "n_gpus", "parallel"))
    training = _training(row, model)
    return Case(
        model,
        memory_sources.as_scripted(row, training),
        memory_sources.semantics(row),
        int(row["measured_bytes"]),
        row["metric"],
        strong=row["metric"] == "torch_allocated" and row["seq_kind"] in {"exact", "packed"},
        group=f"{row['method']}/{family}/{row['metric']}",
        label=label,
    )


def _training(row: Mapping[str, str], model: Architecture) -> Training:
    precision, _, extra = row["precision"].partition("+")
    gpus = int(row["n_gpus"])
    adapts = row["method"] in {"lora", "qlora"}
    loss = "full" if row["loss"].startswith("hf") else "fused" if "fused" in row["loss"] else "chunked"
    saves = {"wte": "embed_tokens", "lm_head(saved)": "lm_head"}
    return Training(
        method=row["method"],  # type: ignore[arg-type]  # a word of the file, checked when it is used
        precision=precision,  # type: ignore[arg-type]  # a word of the file, checked when it is used
        autocast=extra == "autocast",
        batch=int(row["batch"]),
        sequence=memory_sources.sequence(row),
        optimizer=_optimizer(row),  # type: ignore[arg-type]  # a word of the file, checked when it is used
        checkpointing=row["ckpt"] == "yes",
        attention=memory_sources.attention(row, model),  # type: ignore[arg-type]  # a word of the file, checked when it is used
        loss=loss,  # type: ignore[arg-type]  # a word of the file, checked when it is used
        rank=int(row["lora_r"] or 8),
        targets=_targets(row["lora_targets"], model) if adapts else frozenset({"all"}),
        adapter_dropout=float(row["lora_dropout"] or 0),
        # A word of the file, checked when it is used.
        quantisation=_QUANTISATIONS[row["quant"]],  # type: ignore[arg-type]
        saves=frozenset(saves[each] for each in row["lora_targets"].split("+") if each in saves),
        gpus=gpus,
        # A word of the file, checked when it is used.
        sharding=_SHARDING[row["parallel"]] if gpus > 1 else "none",  # type: ignore[arg-type]
    )


def _optimizer(row: Mapping[str, str]) -> str:
    narrow = row["optimizer"] == "adamw_8bit"
    if "optimizer in backward" in row["notes"] or "optimizer step fused into backward" in row["notes"]:
        return "in_backward_adamw_8bit" if narrow else "in_backward_adamw"
    return "adamw_8bit" if narrow else "adamw_foreach"


def _targets(text: str, model: Architecture) -> frozenset[str]:
    roles = {role for name in text.split("+") for role in _ROLES.get(name, ())}
    names = {each.name for each in matrices(model.form) if each.role in roles}
    if "lm_head" in text.split("+"):
        names.add("lm_head")
    return frozenset(names) or frozenset({"all"})
