"""How many tokens of a row a model can read, by its config.json."""

from __future__ import annotations

from typing import Any, Mapping, Optional

_NAMES = ("max_position_embeddings", "n_positions", "n_ctx")
# These number their positions from the padding token on, and have as many fewer.
_FROM_PADDING = (
    "camembert", "data2vec-text", "ibert", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
)  # fmt: skip


def most_positions(config: Mapping[str, Any]) -> Optional[int]:
    """Of a model with a table of positions, which fails beyond it. None of others: those that turn by angles
    (rotary), or weigh by distance, read on."""
    for told in (config, config.get("text_config")):
        if not isinstance(told, Mapping):
            continue
        for name in _NAMES:
            value = told.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return max(1, value - _unused(told)) if _has_table(told) else None
    return None


def _has_table(config: Mapping[str, Any]) -> bool:
    turns = any(value and ("rope" in name or "rotary" in name) for name, value in config.items())
    kind = config.get("position_embedding_type")
    by_distance = config.get("alibi") or config.get("position_biased_input") is False
    return not (turns or by_distance or kind in ("rotary", "alibi", "rope"))


def _unused(config: Mapping[str, Any]) -> int:
    padding = config.get("pad_token_id")
    if config.get("model_type") not in _FROM_PADDING:
        return 0
    return 1 + (padding if isinstance(padding, int) and padding >= 0 else 1)
