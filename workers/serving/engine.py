"""One base model, any number of adapters on it, and text that it writes, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_REPLACEMENT = "\ufffd"  # what half of a character is decoded to
_MOST_ADAPTERS = 16


class PromptTooLong(ValueError):
    """The prompt leaves no room for an answer."""


class WrittenPiece(NamedTuple):
    """More of an answer: its text, the tokens so far, and why it ended, if it did."""

    text: str
    tokens: int
    reason: str | None = None


class Engine:
    """Holds the model on the GPU, where there is one."""

    def __init__(self, base: str, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        has_gpu = torch.cuda.is_available()
        self.device = "cuda" if has_gpu else "cpu"
        dtype = (torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16) if has_gpu else torch.float32
        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        loaded: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        self._model: Any = loaded.to(self.device).eval()
        self._adapted: Any = None
        self._loaded: list[str] = []  # the one that was used last is the last

    def has(self, adapter: str) -> bool:
        return adapter in self._loaded

    def load(self, adapter: str, folder: Path) -> None:
        """Put an adapter beside those that are there; of too many the one that was used least recently goes."""
        from peft import PeftModel

        if self._adapted is None:
            self._adapted = PeftModel.from_pretrained(self._model, str(folder), adapter_name=adapter).eval()
        else:
            self._adapted.load_adapter(str(folder), adapter_name=adapter)
        self._loaded.append(adapter)
        if len(self._loaded) > _MOST_ADAPTERS:
            self._adapted.delete_adapter(self._loaded.pop(0))

    def encode(self, request: dict[str, Any]) -> list[int]:
        """The tokens of a prompt. Raises ValueError for messages that the model's template does not take."""
        if "messages" in request:
            if not getattr(self.tokenizer, "chat_template", None):
                raise ValueError("messages: this model has no chat template; use completions with a prompt")
            text = self.tokenizer.apply_chat_template(request["messages"], tokenize=False, add_generation_prompt=True)
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        ids = self.tokenizer(request["prompt"])["input_ids"]
        end = self.tokenizer.eos_token_id
        return list(ids[:-1] if len(ids) > 1 and ids[-1] == end else ids)

    def write(self, prompt: Sequence[int], adapter: str | None, options: dict[str, Any]) -> Iterator[WrittenPiece]:
        """The answer, piece by piece; the last one says why it ended: stop or length. Raises PromptTooLong."""
        room = self._room(len(prompt))
        most = min(options.get("max_tokens") or room, room)
        stops = tuple(options.get("stop") or ())
        text = Decoded(self.tokenizer, stops)
        for count, token in enumerate(self._tokens(prompt, adapter, options), 1):
            if self._ends(token):
                yield WrittenPiece(text.rest(), count, "stop")
                return
            told, is_over = text.add(token)
            if is_over:
                yield WrittenPiece(told, count, "stop")
                return
            if count >= most:
                yield WrittenPiece(told + text.rest(), count, "length")
                return
            yield WrittenPiece(told, count)

    def _room(self, used: int) -> int:
        most = getattr(self._model.config, "max_position_embeddings", None) or 1 << 30
        if used >= most:
            raise PromptTooLong(f"the prompt has {used} tokens, and the model takes {most} with its answer")
        return int(most) - used

    def _ends(self, token: int) -> bool:
        ends = self._model.generation_config.eos_token_id
        return token == self.tokenizer.eos_token_id or token in (ends if isinstance(ends, list) else [ends])

    def _tokens(self, prompt: Sequence[int], adapter: str | None, options: dict[str, Any]) -> Iterator[int]:
        model = self._chosen(adapter)
        generator = torch.Generator(device=self.device)
        if options.get("seed") is not None:
            generator.manual_seed(int(options["seed"]))
        else:
            generator.seed()
        ids = torch.tensor([list(prompt)], device=self.device)
        kept = None
        while True:
            with torch.inference_mode():
                out = model(input_ids=ids, past_key_values=kept, use_cache=True)
            kept = out.past_key_values
            token = chosen_token(out.logits[0, -1].float(), options, generator)
            yield token
            ids = torch.tensor([[token]], device=self.device)

    def _chosen(self, adapter: str | None) -> Any:
        """The model with this adapter; without any, where none was named."""
        if self._adapted is None:
            return self._model
        if adapter is None:
            self._adapted.base_model.disable_adapter_layers()
            return self._adapted
        self._adapted.base_model.enable_adapter_layers()
        self._adapted.set_adapter(adapter)
        self._loaded.remove(adapter)
        self._loaded.append(adapter)
        return self._adapted


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
