"""Texts that are written together: one forward pass gives each of them its next token.

A lane is a batch whose rows come and go between two tokens. Shorter rows are padded on the left, where the mask hides
the padding; a row's own positions are what they would be alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

PREFILL_TOKENS = 1024  # of a prompt that are read between two tokens of the others
Forward = Callable[..., Any]


@dataclass(eq=False)
class Writing:
    """A text that is being written. `ids`: the prompt and what was written; of these its cache has all but the last,
    or the first `fed` while they are read. `most`: tokens that it may write; `key`: the lane that it belongs in."""

    ids: list[int]
    prompt_tokens: int
    most: int
    adapter: str | None
    options: dict[str, Any]
    key: Hashable
    text: Any
    generator: Any
    cache: Any = None
    fed: int = 0

    @property
    def written(self) -> int:
        return len(self.ids) - self.prompt_tokens

    def ahead(self, most: int) -> int:
        """How many tokens it will have when it has written so many more."""
        return len(self.ids) + min(self.most - self.written, most)

    def begin_again(self) -> None:
        """Its cache is gone: what it was made from is not."""
        self.cache, self.fed = None, 0


class TextLane:
    """`rows` in the order of the cache's rows."""

    def __init__(self, device: str) -> None:
        self.rows: list[Writing] = []
        self._device = device
        self._cache: Any = None
        self._mask: Any = None

    @property
    def tokens(self) -> int:
        """What its cache holds, padding included."""
        return 0 if self._mask is None else int(self._mask.numel())

    def tokens_with(self, length: int) -> int:
        """What it would hold with a row of this length besides."""
        width = 0 if self._mask is None else int(self._mask.shape[1])
        return (len(self.rows) + 1) * max(width, length)

    def join(self, row: Writing) -> None:
        """A row whose prompt was read."""
        length = len(row.ids) - 1
        mask = torch.ones((1, length), dtype=torch.long, device=self._device)
        if self._cache is None:
            self._cache, self._mask = row.cache, mask
        else:
            width = max(length, self._mask.shape[1])
            self._mask = torch.cat([_widened(self._mask, width), _widened(mask, width)])
            for own, new in zip(self._cache.layers, row.cache.layers, strict=True):
                own.keys = torch.cat([_deepened(own.keys, width), _deepened(new.keys, width)])
                own.values = torch.cat([_deepened(own.values, width), _deepened(new.values, width)])
        row.cache = None
        self.rows.append(row)

    def leave(self, gone: Sequence[Writing]) -> None:
        """These rows are not written any further; padding that nobody needs any more goes with them."""
        kept = [place for place, row in enumerate(self.rows) if row not in gone]
        if len(kept) == len(self.rows):
            return
        self.rows = [self.rows[place] for place in kept]
        if not kept:
            self._cache = self._mask = None
            return
        if not is_joinable(self._cache):
            return
        chosen = torch.tensor(kept, device=self._device)
        mask = self._mask.index_select(0, chosen)
        first = int(mask.argmax(dim=1).min())
        self._mask = mask[:, first:]
        for layer in self._cache.layers:
            layer.keys = layer.keys.index_select(0, chosen)[:, :, first:]
            layer.values = layer.values.index_select(0, chosen)[:, :, first:]

    def logits(self, forward: Forward) -> Any:
        """Of each row's next token."""
        ids = torch.tensor([[row.ids[-1]] for row in self.rows], device=self._device)
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(self.rows), 1))], dim=1)
        places = {}
        if is_joinable(self._cache):
            positions = [[len(row.ids) - 1] for row in self.rows]
            places = {"attention_mask": self._mask, "position_ids": torch.tensor(positions, device=self._device)}
        out = forward(self.rows, input_ids=ids, past_key_values=self._cache, use_cache=True, **places)
        self._cache = out.past_key_values
        return out.logits[:, -1].float()


def read_on(row: Writing, forward: Forward, device: str) -> Any:
    """The next part of what a row begins with; its logits once all of that is read, else None."""
    part = row.ids[row.fed : row.fed + PREFILL_TOKENS]
    ids = torch.tensor([part], device=device)
    out = forward([row], input_ids=ids, past_key_values=row.cache, use_cache=True)
    row.cache = out.past_key_values
    row.fed += len(part)
    return out.logits[:, -1].float() if row.fed == len(row.ids) else None


def is_joinable(cache: Any) -> bool:
    """Whether rows of it can be put together and taken apart: not where a layer keeps a window, or a state."""
    layers: Any = getattr(cache, "layers", None) or []
    return bool(layers) and all(type(layer).__name__ == "DynamicLayer" and layer.keys is not None for layer in layers)


def takes_positions(model: Any) -> bool:
    """Whether a model can be told the places of tokens, as padding asks for."""
    return {"position_ids", "attention_mask"} <= inspect.signature(model.forward).parameters.keys()


def _widened(mask: Any, width: int) -> Any:
    return pad(mask, (width - mask.shape[1], 0))


def _deepened(states: Any, width: int) -> Any:
    return pad(states, (0, 0, width - states.shape[2], 0))
