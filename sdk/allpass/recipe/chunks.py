"""Of how many tokens a causal model's logits exist at once, where its loss is computed by chunks. Runs on Python 3.9.

It decides the last bits of a step: what is here is part of edition 3, and another rule is another edition. The memory
predictor has the same numbers (`app.core.memory.predict`).
"""

from __future__ import annotations

LEAST_TOKENS = 512  # fewer would leave matrix units waiting for the head's weights
MOST_VALUES = 1 << 25  # of logits, where that is more tokens: 128 MiB in float32


def chunk_tokens(vocabulary: int) -> int:
    """Tokens in a chunk, for a model with so many words."""
    return max(LEAST_TOKENS, MOST_VALUES // max(1, vocabulary))
