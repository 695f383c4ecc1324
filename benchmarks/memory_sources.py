"""What a source of measured runs does that its row does not say: read off its scripts and its framework's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.core.memory import PROFILES, Architecture, Semantics, Training

ATTENTION = {"flash2": "flash", "sdpa_efficient": "efficient", "eager": "eager", "sdpa": "flash"}
_LONGEST = {"torchtune README v0.2-0.3": 1304}
"""Tokens of the longest example in the data set that a source trains on, where it states only a bound: Alpaca in
Llama 2's tokens (the recipes' default; counted in litgpt's resource tables)."""

_PROFILES = (
    ("accelerated-peft", "transformers-4-bnb"),
    ("baseline-peft-bnb", "transformers-4-bnb-upcast"),
    ("hf-trl", "transformers-4"),
)
"""By a part of the framework's name; the first that is found."""


def from_qwen(row: Mapping[str, str]) -> bool:
    """Whether the run is one of the Qwen repository."""
    return row["source"].startswith("Qwen")


def as_scripted(row: Mapping[str, str], training: Training) -> Training:
    """Scripts of the Qwen repository (`finetune/*.sh`) accumulate 8 sequences (its README), and run all but adapters
    on one GPU under DeepSpeed, which replaces autocast; quantised weights compute in float16."""
    if not from_qwen(row):
        return training
    training = replace(training, accumulation=8)
    if training.method == "lora" and training.sharding == "none":
        return training
    training = replace(training, autocast=False, sharding="zero2" if training.gpus == 1 else training.sharding)
    return replace(training, precision="fp16") if training.method == "qlora" else training


def attention(row: Mapping[str, str], model: Architecture) -> str:
    """As the row says, but litgpt computes capped scores itself (`scaled_dot_product_attention` in `model.py`)."""
    return "eager" if row["framework"] == "litgpt" and model.form.softcap else ATTENTION[row["attn"]]


def sequence(row: Mapping[str, str]) -> int:
    """Tokens of the longest sequence that was seen."""
    return min(int(row["seq"]), _LONGEST.get(row["source"], int(row["seq"])))


def semantics(row: Mapping[str, str]) -> Semantics:
    """Which profile the framework of the row runs under."""
    framework = row["framework"]
    name = next((name for part, name in _PROFILES if part in framework), framework)
    if "foak" in framework:
        name = "fused-kernels-4"
    elif from_qwen(row):
        name = "qwen"
    elif framework.startswith("hf-peft"):
        name = "transformers-5-held-output" if "fitcheck" in row["source"] else "transformers-5"
    elif framework == "torchtune" and row["source_version"] == "v0.3.0":
        name = "torchtune-0.3"
    elif framework == "litgpt" and row["seq_kind"].startswith("max_len"):  # else the longest batch follows shorter ones
        name = "litgpt-even-batches"
    return PROFILES[name]
