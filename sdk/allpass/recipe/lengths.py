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
    """None where the configuration says nothing of it."""
    for told in (config, config.get("text_config")):
        if not isinstance(told, Mapping):
            continue
        for name in _NAMES:
            value = told.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return max(1, value - _unused(told))
    return None


def _unused(config: Mapping[str, Any]) -> int:
    padding = config.get("pad_token_id")
    if config.get("model_type") not in _FROM_PADDING:
        return 0
    return 1 + (padding if isinstance(padding, int) and padding >= 0 else 1)
