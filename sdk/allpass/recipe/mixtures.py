"""Mixtures of experts, which the recipe does not train yet: PEFT leaves their experts out or raises after the download,
and 4-bit weights do not reach them, so that they need several times the memory that was predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from allpass.errors import InvalidInput

_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
_NAMES = re.compile(
    r"(^|[^a-z])(mixtral|moe|olmoe|jetmoe|dbrx|grok|gpt-oss|\d+b-\d+e|\d+x\d+b|a\d+(\.\d+)?b|deepseek-(v2|v3|r1)(?!-distill))"
)
_NOT = re.compile(r"deepseek-r1-(distill|0528-qwen)")


def refuse_mixture(model: str, config: Mapping[str, Any] | None) -> None:
    """Raises InvalidInput for a model whose configuration, or else its name, says that it is a mixture of experts."""
    plain = model.lower().replace("_", "-").rstrip("/").rpartition("/")[2]
    if config is not None:
        refuse_config(model, config)
    elif _NAMES.search(plain) and not _NOT.search(plain):
        raise _mixture(model)


def refuse_config(model: str, config: Mapping[str, Any]) -> None:
    """As `refuse_mixture`, of a model's config.json; the text model of one that also sees has its own part of it."""
    for told in (config, config.get("text_config")):
        if isinstance(told, Mapping) and any(_counts(told.get(key)) for key in _KEYS):
            raise _mixture(model)


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _mixture(model: str) -> InvalidInput:
    return InvalidInput(
        f"model: {model!r} is a mixture of experts, which the recipe does not train yet: its experts would stay as "
        "they are, in full size",
        hint="a dense model, or a script of your own: allpass run train.py",
    )
