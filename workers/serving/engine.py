"""One base model, any number of adapters on it, and texts that it writes at once, token by token."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from workers.serving.lanes import TextLane, Writing, is_joinable, read_on, takes_positions
from workers.serving.texts import WrittenPiece, encoded, room_for

_REPLACEMENT = "\ufffd"  # what half of a character is decoded to
_MOST_ADAPTERS = 16
_TOKENS_WITHOUT_GPU = 65_536
_SHARE_OF_FREE = 0.4  # of the GPU's memory; joining a batch holds it twice for a moment
_AHEAD = 256  # tokens that are kept room for when a text begins
_ALL = "all"  # the lane of all rows that can be written together


Told = tuple[Writing, "WrittenPiece | Exception"]


class Engine:
    """Holds the model on the GPU, where there is one. `most_tokens`: what all texts together may hold in memory;
    0: what fits."""

    def __init__(self, base: str, threads: int = 1, most_tokens: int = 0) -> None:
        torch.set_num_threads(threads)
        has_gpu = torch.cuda.is_available()
        self.device = "cuda" if has_gpu else "cpu"
        dtype = (torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16) if has_gpu else torch.float32
        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        loaded: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        self._model: Any = loaded.to(self.device).eval()
        self._adapted: Any = None
        self._loaded: list[str] = []  # the one that was used last is the last
        self._apart: set[str] = set()  # adapters that are not computed beside others
        self._active: object = _ALL  # what the layers of the adapters are set to
        self._places = takes_positions(self._model)
        self._entering: list[Writing] = []
        self._lanes: dict[Hashable, TextLane] = {}
        self.most_tokens = most_tokens or self._room_in_memory()

    @property
    def writing(self) -> int:
        """How many texts are being written."""
        return len(self._entering) + sum(len(lane.rows) for lane in self._lanes.values())

    @property
    def tokens(self) -> int:
        """What they hold, padding included."""
        return sum(row.fed for row in self._entering) + sum(lane.tokens for lane in self._lanes.values())

    def has(self, adapter: str) -> bool:
        return adapter in self._loaded

    def load(self, adapter: str, folder: Path) -> None:
        """Put an adapter beside those that are there; of too many the one that was used least recently goes, unless a
        text is being written with it."""
        from peft import PeftModel

        if self._adapted is None:
            self._adapted = PeftModel.from_pretrained(self._model, str(folder), adapter_name=adapter).eval()
        else:
            self._adapted.load_adapter(str(folder), adapter_name=adapter)
            self._adapted.eval()
        self._active = None
        config = self._adapted.peft_config[adapter]
        if any(getattr(config, name, None) for name in ("use_dora", "modules_to_save", "trainable_token_indices")):
            self._apart.add(adapter)
        self._loaded.append(adapter)
        used = {row.adapter for row in self._rows()}
        idle = [name for name in self._loaded[:-1] if name not in used]
        if len(self._loaded) > _MOST_ADAPTERS and idle:
            self._loaded.remove(idle[0])
            self._apart.discard(idle[0])
            self._adapted.delete_adapter(idle[0])

    def encode(self, request: dict[str, Any]) -> list[int]:
        """The tokens of a prompt. Raises ValueError for messages that the model's template does not take."""
        return encoded(self.tokenizer, request)

    def takes(self, prompt_tokens: int) -> bool:
        """Whether a text that begins with so many can be written beside the others now. One alone always can."""
        return not self.writing or (not self._entering and self._has_room(prompt_tokens + _AHEAD))

    def begin(self, prompt: Sequence[int], adapter: str | None, options: dict[str, Any]) -> Writing:
        """A text that `step` writes on. Raises PromptTooLong."""
        most = getattr(self._model.config, "max_position_embeddings", None) or 1 << 30
        room = room_for(len(prompt), int(most))
        generator = torch.Generator(device=self.device)
        if options.get("seed") is not None:
            generator.manual_seed(int(options["seed"]))
        else:
            generator.seed()
        row = Writing(
            ids=list(prompt),
            prompt_tokens=len(prompt),
            most=min(options.get("max_tokens") or room, room),
            adapter=adapter,
            options=options,
            key=adapter if adapter in self._apart else _ALL,
            text=Decoded(self.tokenizer, tuple(options.get("stop") or ())),
            generator=generator,
        )
        if not self._places:
            row.key = row
        if adapter is not None:
            self._loaded.remove(adapter)
            self._loaded.append(adapter)
        self._entering.append(row)
        return row

    def drop(self, row: Writing) -> None:
        """Nobody wants its text any more."""
        if row in self._entering:
            self._entering.remove(row)
        for lane in self._lanes.values():
            lane.leave([row])
        self._forget_empty()

    def step(self) -> list[Told]:
        """One token more of each text, and the next part of one prompt. What goes wrong is told of the text that it
        happened to."""
        told: list[Told] = []
        if self._entering and self._has_room(self._entering[0].ahead(_AHEAD)):
            told += self._guarded([self._entering[0]], self._enter)
        for lane in list(self._lanes.values()):
            told += self._guarded(list(lane.rows), lambda lane=lane: self._advance(lane))
        self._forget_empty()
        self._make_room()
        return told

    def write(self, prompt: Sequence[int], adapter: str | None, options: dict[str, Any]) -> Iterator[WrittenPiece]:
        """One text by itself, piece by piece; the last one says why it ended: stop or length. Raises PromptTooLong."""
        row = self.begin(prompt, adapter, options)
        while True:
            for _, piece in self.step():
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if piece.reason is not None:
                    return
            assert self._entering or row in self._rows()

    def _has_room(self, length: int) -> bool:
        """For one more text that will be so long in a while."""
        held = sum(lane.tokens for lane in self._lanes.values())
        lane = self._lanes.get(_ALL)
        more = length if lane is None else lane.tokens_with(length) - lane.tokens
        return not self._lanes or held + more <= self.most_tokens

    def _rows(self) -> list[Writing]:
        return [*self._entering, *(row for lane in self._lanes.values() for row in lane.rows)]

    def _enter(self) -> list[Told]:
        """Read on in the prompt that came first; all of it read, its text begins."""
        row = self._entering[0]
        logits = read_on(row, self._forward, self.device)
        if logits is None:
            return []
        self._entering.remove(row)
        told = self._taken(row, logits[0])
        if _goes_on(told):
            key = row.key if is_joinable(row.cache) else row
            self._lanes.setdefault(key, TextLane(self.device)).join(row)
        return told

    def _advance(self, lane: TextLane) -> list[Told]:
        logits = lane.logits(self._forward)
        told = [one for row, own in zip(list(lane.rows), logits, strict=True) for one in self._taken(row, own)]
        lane.leave([row for row, piece in told if not _goes_on([(row, piece)])])
        return told

    def _taken(self, row: Writing, logits: Any) -> list[Told]:
        """The next token of a text, and what can be told of it."""
        try:
            token = chosen_token(logits, row.options, row.generator)
        except Exception as error:  # of numbers that are none, as a broken adapter gives
            return [(row, error)]
        row.ids.append(token)
        count = row.written
        if self._ends(token):
            return [(row, WrittenPiece(row.text.rest(), count, "stop"))]
        told, is_over = row.text.add(token)
        if is_over:
            return [(row, WrittenPiece(told, count, "stop"))]
        if count >= row.most:
            return [(row, WrittenPiece(told + row.text.rest(), count, "length"))]
        return [(row, WrittenPiece(told, count))]

    def _guarded(self, rows: list[Writing], act: Any) -> list[Told]:
        """Where a pass over several texts fails, each is begun again where it was, alone: only the one that fails so,
        too, is given up. Where memory has run out, fewer are written at once from then on."""
        try:
            with torch.inference_mode():
                found: list[Told] = act()
                return found
        except Exception as error:  # whatever a model's code raises
            if isinstance(error, torch.OutOfMemoryError):
                self.most_tokens = max(1, min(self.most_tokens, self.tokens) * 3 // 4)
            if len(rows) == 1 and self.writing == 1:
                self.drop(rows[0])
                return [(rows[0], error)]
            is_alone = len(rows) == 1 and rows[0].key is rows[0]
            failed: Exception = error
        self._again(rows)
        if self.device == "cuda":
            torch.cuda.empty_cache()
        if is_alone and not isinstance(failed, torch.OutOfMemoryError):
            self.drop(rows[0])
            return [(rows[0], failed)]
        if not isinstance(failed, torch.OutOfMemoryError):
            for row in rows:
                row.key = row
        return []

    def _again(self, rows: list[Writing]) -> None:
        for row in rows:
            self.drop(row)
            row.begin_again()
        self._entering += rows

    def _make_room(self) -> None:
        """Texts grow: while they hold too much, the one that came last begins again later."""
        while self.tokens > self.most_tokens:
            rows = [row for lane in self._lanes.values() for row in lane.rows]
            if len(rows) < 2:
                return
            self._again([min(rows, key=lambda row: row.written)])

    def _forget_empty(self) -> None:
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.rows}

    def _forward(self, rows: Sequence[Writing], **given: Any) -> Any:
        """The model with the adapters of these rows."""
        if self._adapted is None:
            return self._model(**given)
        names = {row.adapter for row in rows}
        if len(names) > 1:
            self._set_adapter(_ALL)
            return self._adapted(**given, adapter_names=[row.adapter or "__base__" for row in rows])
        self._set_adapter(names.pop())
        return self._adapted(**given)

    def _set_adapter(self, name: str | None) -> None:
        """Of all layers; `_ALL`: each row has its own."""
        wanted = ("only", name)
        if self._active == wanted:
            return
        if name is None:
            self._adapted.base_model.disable_adapter_layers()
        else:
            self._adapted.base_model.enable_adapter_layers()
            if name != _ALL:
                self._adapted.set_adapter(name)
        self._active = wanted

    def close(self) -> None:
        """Nothing is left of it but memory."""

    def _room_in_memory(self) -> int:
        if self.device != "cuda":
            return _TOKENS_WITHOUT_GPU
        config = self._model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        wide = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        token_bytes = 2 * 2 * config.num_hidden_layers * heads * wide
        free_bytes, _ = torch.cuda.mem_get_info()
        return max(1, int(_SHARE_OF_FREE * free_bytes / token_bytes))

    def _ends(self, token: int) -> bool:
        ends = self._model.generation_config.eos_token_id
        return token == self.tokenizer.eos_token_id or token in (ends if isinstance(ends, list) else [ends])


def _goes_on(told: Sequence[Told]) -> bool:
    return all(isinstance(piece, WrittenPiece) and piece.reason is None for _, piece in told)


class Decoded:
    """Text of tokens, as far as it is certain: half of a character waits for its other half, and what may become a
    stop sequence for what follows."""

    def __init__(self, tokenizer: Any, stops: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._ids: list[int] = []
        self._told = 0

    def add(self, token: int) -> tuple[str, bool]:
        """What can be told now, and whether a stop sequence was met, which is not told."""
        self._ids.append(token)
        text = self._text()
        for stop in self._stops:
            at = text.find(stop)
            if at >= 0:
                return self._upto(text, at), True
        certain = text.rstrip(_REPLACEMENT)
        end = len(certain) - max((_overlap(certain, stop) for stop in self._stops), default=0)
        return self._upto(text, end), False

    def rest(self) -> str:
        """What is left at the end."""
        text = self._text()
        return self._upto(text, len(text))

    def _text(self) -> str:
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        return text

    def _upto(self, text: str, end: int) -> str:
        told = text[self._told : max(end, self._told)]
        self._told += len(told)
        return told


def chosen_token(logits: Any, options: dict[str, Any], generator: Any) -> int:
    """The next token: the likeliest at temperature 0, else one by chance, of those that make up `top_p`."""
    temperature = options.get("temperature")
    temperature = 1.0 if temperature is None else float(temperature)
    if temperature <= 0:
        return int(logits.argmax())
    likely = torch.softmax(logits / temperature, dim=-1)
    top_p = options.get("top_p")
    if top_p is not None and top_p < 1:
        ordered, order = likely.sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered > float(top_p)
        likely = torch.zeros_like(likely).scatter(0, order, ordered.masked_fill(beyond, 0.0))
    return int(torch.multinomial(likely, 1, generator=generator))


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
