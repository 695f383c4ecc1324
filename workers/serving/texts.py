"""What every engine knows of texts: the tokens of a prompt, and the pieces of an answer."""

from __future__ import annotations

from typing import Any, NamedTuple


class PromptTooLong(ValueError):
    """The prompt leaves no room for an answer."""


class WrittenPiece(NamedTuple):
    """More of an answer: its text, the tokens so far, and why it ended, if it did."""

    text: str
    tokens: int
    reason: str | None = None


def encoded(tokenizer: Any, request: dict[str, Any]) -> list[int]:
    """The tokens of a prompt. Raises ValueError for messages that the model's template does not take."""
    if "messages" in request:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("messages: this model has no chat template; use completions with a prompt")
        text = tokenizer.apply_chat_template(request["messages"], tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    ids = tokenizer(request["prompt"])["input_ids"]
    end = tokenizer.eos_token_id
    return list(ids[:-1] if len(ids) > 1 and ids[-1] == end else ids)


def room_for(used: int, most: int) -> int:
    """How many tokens an answer may have. Raises PromptTooLong."""
    if used >= most:
        raise PromptTooLong(f"the prompt has {used} tokens, and the model takes {most} with its answer")
    return most - used
