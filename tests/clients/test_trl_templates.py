"""The chat templates of many models, as TRL ships them: what is learned of a conversation with each.

TRL has two of most: the model's own, and one of its making that marks what the assistant says. By the first the recipe
learns what TRL does by the second, from where the model is asked to go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.encoding import IGNORED, Encoder
from tests.clients.environments import made_by
from tests.training import tiny

SYSTEM = {"role": "system", "content": "Be very brief."}
ASK, ANSWER = {"role": "user", "content": "Where to?"}, {"role": "assistant", "content": "Northwards!"}
TALK = [ASK, ANSWER, {"role": "user", "content": "Bye then"}, {"role": "assistant", "content": "So long."}]
FUNCTION = {"name": "look_up", "arguments": '{"city": "Bonn"}'}
CALLS: list[dict[str, Any]] = [
    ASK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "abcde1234", "type": "function", "function": FUNCTION}],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "abcde1234", "name": "look_up"},
    ANSWER,
]
# Of those that write none: the last drops an answer that has no words, as transformers leaves it out before.
WITHOUT_CALLS = (
    "cohere", "cohere2", "gemma", "gemma3", "idefics3", "lfm2", "llama3", "llava_next", "phi3", "phi3_5", "qwen2_5_vl",
    "smolvlm", "deepseek_r1_distill",
)  # fmt: skip


def folder() -> Path:
    (found,) = (made_by["ENVIRONMENTS"] / "trl").glob("lib/python*/site-packages/trl/chat_templates")
    return Path(found)


def names() -> list[str]:
    """Of all templates; of one where the environment is not made yet, so that its test fails."""
    there = sorted(made_by["ENVIRONMENTS"].glob("trl/lib/python*/site-packages/trl/chat_templates/*.jinja"))
    return [file.stem for file in there] or ["qwen3"]


@pytest.fixture
def tokenizer(name: str) -> Any:
    made = tiny.byte_tokenizer()
    made.chat_template = (folder() / f"{name}.jinja").read_text(encoding="utf-8")
    return made


def parts(tokenizer: Any, messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What is given and what is learned of each sequence."""
    found = []
    for one in Encoder(tokenizer, "messages", (), 100_000).encode({"messages": messages}, "row 1"):
        assert len(one.ids) == len(one.targets)
        learned = [token for token in one.targets if token != IGNORED]
        given = [token for token, target in zip(one.ids, one.targets, strict=True) if target == IGNORED]
        found.append((tokenizer.decode(given), tokenizer.decode(learned)))
    return found


@pytest.mark.parametrize("name", names())
def test_each_answer_is_learned_once_and_nothing_that_is_asked(tokenizer: Any) -> None:
    """With one answer, with two, and with a system turn; each to a mark of its end."""
    for messages in ([ASK, ANSWER], TALK, [SYSTEM, *TALK]):
        found = parts(tokenizer, messages)
        learned = "".join(text for _, text in found)
        for message in messages:
            assert learned.count(message["content"]) == (message["role"] == "assistant")
            assert any(message["content"] in text for pair in found for text in pair)
        for _, text in found:
            assert not text.rstrip().endswith(("Northwards!", "So long."))
        assert len(found) in (1, len(messages) // 2)


@pytest.mark.parametrize("name", [one for one in names() if f"{one}_training" in names()])
def test_what_is_learned_is_what_trl_learns(name: str, tokenizer: Any) -> None:
    """Of one answer: from where the model is asked to go on, to the mark of its end."""
    other = tiny.byte_tokenizer()
    other.chat_template = (folder() / f"{name}_training.jinja").read_text(encoding="utf-8")
    has_parts = name in ("idefics3", "llava_next", "smolvlm")
    messages = [
        {**one, "content": [{"type": "text", "text": one["content"]}]} if has_parts else one for one in (ASK, ANSWER)
    ]
    theirs = other.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    learned = [token for token, mask in zip(theirs["input_ids"], theirs["assistant_masks"], strict=True) if mask]
    ((_, ours),) = parts(tokenizer, [ASK, ANSWER])
    wanted = other.decode(learned)
    if name == "glm4moe":  # its answers end with what comes next; the recipe ends them with the mark of the end of all
        ours, wanted = ours.removesuffix("</s>"), wanted.removesuffix("<|user|>")
    assert wanted.strip().endswith(ours.strip())


@pytest.mark.parametrize("name", names())
def test_calls_of_tools_are_learned_or_refused(name: str, tokenizer: Any) -> None:
    """Never left out in silence."""
    if name.removesuffix("_training") in WITHOUT_CALLS:
        with pytest.raises(ValueError, match="shows no tool_calls"):
            parts(tokenizer, CALLS)
        return
    found = parts(tokenizer, CALLS)
    learned = "".join(text for _, text in found)
    assert "look_up" in learned
    assert "Bonn" in learned
    assert "Northwards!" in learned
    assert "sunny" not in learned
