"""What is learned of a conversation, whatever the model's chat template makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from allpass.recipe.encoding import IGNORED, Encoder, Example

pytestmark = pytest.mark.training
ASK, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
TALK = [ASK, ANSWER, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So long"}]
SYSTEM = {"role": "system", "content": "Be brief."}
_BEGIN = "{% for m in messages %}"
_END = "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
PLAIN = _BEGIN + "[{{ m.role }}] {{ m.content }}|{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"


def tokenizer_of(template: str | None) -> Any:
    from tests.training import tiny

    tokenizer = tiny.byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def shown(tokenizer: Any, example: Example) -> str:
    """A sequence as text, with what is learned of it between ( and )."""
    text, within = "", False
    for token, target in zip(example.ids, example.targets, strict=True):
        if (target != IGNORED) != within:
            text, within = text + (")" if within else "("), not within
        text += tokenizer.decode([token])
    return text + (")" if within else "")


def learned(template: str | None, messages: list[Mapping[str, Any]], **more: Any) -> list[str]:
    tokenizer = tokenizer_of(template)
    row = {"messages": messages, **more}
    return [shown(tokenizer, one) for one in Encoder(tokenizer, "messages", (), 500).encode(row, "row 1")]


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        (PLAIN, ["[user] Hi|[assistant] (Yo|)[user] Bye|[assistant] (So long|)"]),
        (
            _BEGIN
            + "[{{ m.role }}] {% if m.role == 'assistant' %}{% if loop.last %}<think></think>{% endif %}{% endif %}"
            "{{ m.content }}|" + _END,
            [
                "[user] Hi|[assistant] (<think></think>Yo|)",
                "[user] Hi|[assistant] Yo|[user] Bye|[assistant] (<think></think>So long|)",
            ],
        ),
        (
            _BEGIN + "[{{ m.role }}] {{ m.content }}|{% endfor %}{% if add_generation_prompt %}[assistant] "
            "{% else %}{{ eos_token }}{% endif %}",
            ["[user] Hi|[assistant] (Yo|)[user] Bye|[assistant] (So long|</s>)"],
        ),
        (
            _BEGIN + "[{{ m.role }}] {{ m.content }}" + _END,
            ["[user] Hi[assistant] (Yo</s>)", "[user] Hi[assistant] Yo[user] Bye[assistant] (So long</s>)"],
        ),
        (
            PLAIN.replace("[assistant] ", "[assistant] <think>\n"),
            ["[user] Hi|[assistant] (Yo|)[user] Bye|[assistant] (So long|)"],
        ),
        (
            _BEGIN + "[{{ m.role }}] {% for part in m.content %}{{ part.text }}{% endfor %}|" + _END,
            ["[user] Hi|[assistant] (Yo|)[user] Bye|[assistant] (So long|)"],
        ),
        (
            "{{ messages[-1].role }} {{ messages[-1].content }}{% if add_generation_prompt %}...{% else %}|{% endif %}",
            ["user Hi...(Yo|)", "user Bye...(So long|)"],
        ),
        (
            _BEGIN + "[{{ m.role }}] {% if m.role == 'assistant' %}{% generation %}{{ m.content }}|{% endgeneration %}"
            "{{ '\\n' }}{% else %}{{ m.content }}|{% endif %}" + _END,
            ["[user] Hi|[assistant] (Yo|)\n[user] Bye|[assistant] (So long|)\n"],
        ),
    ],
    ids=["as asked", "thoughts of the last", "end of all", "no end", "begins thoughts", "parts", "forgets", "marked"],
)
def test_every_answer_of_a_conversation_is_learned_to_its_end(template: str, texts: list[str]) -> None:
    """In one text where the model reads earlier answers as it gave them, and in one for each answer otherwise."""
    assert learned(template, TALK) == texts


def test_a_model_without_a_template_reads_roles_as_words() -> None:
    """A name and a colon, and its own mark of the end."""
    text = "<s>system: Be brief.\nuser: Hi\nassistant: (Yo</s>)user: Bye\nassistant: (So long</s>)"
    assert learned(None, [SYSTEM, *TALK]) == [text]


@pytest.mark.parametrize("template", [PLAIN, None], ids=["template", "none"])
def test_an_answer_of_no_weight_is_given_and_not_learned(template: str | None) -> None:
    """As in OpenAI's format; what comes after the last answer that is learned is left out."""
    first, second = ([*TALK[:1], {**ANSWER, "weight": 0}, *TALK[2:]], [*TALK[:3], {**TALK[3], "weight": 0}])
    (text,) = learned(template, first)
    assert "(Yo" not in text
    assert "(So long" in text
    (text,) = learned(template, second)
    assert "(Yo" in text
    assert "(So long" not in text


@pytest.mark.parametrize(
    "template",
    ["{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN,
     _BEGIN + "{% if m.role != 'system' %}[{{ m.role }}] {{ m.content }}|{% endif %}" + _END],
    ids=["refuses", "leaves out"],
)  # fmt: skip
def test_a_system_turn_goes_into_the_first_question_where_there_is_none(template: str) -> None:
    """As the publishers of such models say."""
    assert learned(template, [SYSTEM, ASK, ANSWER]) == ["[user] Be brief.\n\nHi|[assistant] (Yo|)"]


def test_thoughts_that_a_template_forgets_are_learned_all_the_same() -> None:
    """It was made to ask, and what the model thought before is not shown to it again. The answer goes on with what
    the asking begins."""
    template = (
        _BEGIN + "[{{ m.role }}] {{ m.content.split('</think>')[-1] }}|{% endfor %}"
        "{% if add_generation_prompt %}[assistant] <think>\n{% endif %}"
    )
    first = {"role": "assistant", "content": "<think>\nhm</think>Yo"}
    assert learned(template, [ASK, first]) == ["[user] Hi|[assistant] <think>\n(hm</think>Yo|)"]
    assert learned(template, [ASK, first, *TALK[2:]]) == [
        "[user] Hi|[assistant] <think>\n(hm</think>Yo|)",
        "[user] Hi|[assistant] Yo|[user] Bye|[assistant] (So long|)",
    ]


CALLS = (
    _BEGIN + "[{{ m.role }}{{ ' ' + m.name if m.name }}] {{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }} ARGUMENTS>{% endfor %}|" + _END
)
_OBJECT = "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
_FUNCTION = {"name": "look_up", "arguments": '{"city": "Köln"}'}
LOOKED_UP: list[Mapping[str, Any]] = [
    ASK,
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": _FUNCTION}]},
    {"role": "tool", "content": "sunny", "tool_call_id": "c1", "name": "look_up"},
    ANSWER,
]


@pytest.mark.parametrize(
    ("arguments", "call"),
    [(_OBJECT, "city=Köln"), ("{{ '' + call.function.arguments }}", '{"city": "Köln"}')],
    ids=["an object", "its JSON"],
)
def test_calls_of_tools_are_learned_as_the_template_writes_them(arguments: str, call: str) -> None:
    """Whether it takes arguments as an object or as text, and the rows have them as the one or the other."""
    text = f"[user] Hi|[assistant] (<look_up {call}>|)[tool look_up] sunny|[assistant] (Yo|)".encode()
    template = CALLS.replace("ARGUMENTS", arguments)
    as_object = {**_FUNCTION, "arguments": {"city": "Köln"}}
    other = {**LOOKED_UP[1], "tool_calls": [{"id": "c1", "type": "function", "function": as_object}]}
    for messages in (LOOKED_UP, [ASK, other, *LOOKED_UP[2:]]):
        tokenizer = tokenizer_of(template)
        (example,) = Encoder(tokenizer, "messages", (), 500).encode({"messages": messages}, "row 1")
        assert tokenizer.decode(list(example.ids)).encode() == text.replace(b"(", b"").replace(b")", b"")
        answers = tokenizer.decode([one for one in example.targets if one != IGNORED])
        assert answers == f"<look_up {call}>|Yo|"


def test_calls_beside_thoughts_that_a_template_forgets_are_refused() -> None:
    """Neither is left out: it cannot write both."""
    said = "{{ (m.content or '').split('</think>')[-1] }}"
    template = CALLS.replace("ARGUMENTS", _OBJECT).replace("{{ m.content or '' }}", said)
    thinking = {**LOOKED_UP[1], "content": "<think>hm</think>Let me see."}
    with pytest.raises(ValueError, match="leaves 'look_up' out of a call of tools"):
        learned(template, [ASK, thinking, *LOOKED_UP[2:]])


def test_thoughts_beside_what_is_said_are_learned_or_told() -> None:
    """Where a template shows them of the last answer alone, also by its own marks, each answer is a text."""
    thoughts = "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    marked = "{% generation %}" + thoughts + "{{ m.content }}|{% endgeneration %}"
    template = PLAIN.replace(
        "{{ m.content }}|", "{% if m.role == 'assistant' %}" + marked + "{% else %}{{ m.content }}|{% endif %}"
    )
    talk = [{**one, "reasoning_content": "hmm"} if one["role"] == "assistant" else one for one in TALK]
    assert learned(template, talk) == [
        "[user] Hi|[assistant] (<think>hmm</think>Yo|)",
        "[user] Hi|[assistant] Yo|[user] Bye|[assistant] (<think>hmm</think>So long|)",
    ]
    encoder = Encoder(tokenizer_of(PLAIN), "messages", (), 500)
    encoder.encode({"messages": talk}, "row 1")
    assert encoder.left_out == {"reasoning_content": 2}


@pytest.mark.parametrize(
    "template", [PLAIN, CALLS.replace("ARGUMENTS", ""), None], ids=["none", "names", "no template"]
)
def test_calls_of_tools_that_cannot_be_written_are_refused(template: str | None) -> None:
    """Rather than trained on as if they had not been there."""
    with pytest.raises(ValueError, match=r"row 1 cannot be encoded: .*(tool_calls|a call of tools)"):
        learned(template, LOOKED_UP)


def test_what_a_template_does_not_show_is_counted() -> None:
    """Names of what is left out, so that it can be told."""
    encoder = Encoder(tokenizer_of(CALLS.replace("ARGUMENTS", _OBJECT)), "messages", (), 500)
    tools = [{"type": "function", "function": {"name": "look_up"}}, {"type": "function", "function": {"name": "other"}}]
    for _ in range(2):
        encoder.encode({"messages": LOOKED_UP, "tools": tools}, "row 1")
    assert encoder.left_out == {"tool_call_id": 2, "tools": 2}


@pytest.mark.parametrize("begins", ["{% generation %}", ""], ids=["marked", "as asked"])
def test_a_template_that_tells_the_day_tells_the_same_one_always(begins: str) -> None:
    """A job that goes on after midnight trains on the tokens that it began with."""
    said = f"{begins}{{{{ m.content }}}}|{begins and '{% endgeneration %}'}"
    template = "{{ strftime_now('%d %b %Y') }}" + PLAIN.replace(
        "{{ m.content }}|", "{% if m.role == 'assistant' %}" + said + "{% else %}{{ m.content }}|{% endif %}"
    )
    assert learned(template, [ASK, ANSWER]) == ["26 Jul 2024[user] Hi|[assistant] (Yo|)"]


def test_a_template_that_shows_no_answer_is_refused() -> None:
    """Nothing could be learned by it."""
    with pytest.raises(ValueError, match="does not show what the assistant says"):
        learned("{{ messages[0].role }}", [ASK, ANSWER])
    with pytest.raises(ValueError, match="what the assistant says: TemplateError: never"):
        learned("{{ raise_exception('never') }}", [ASK, ANSWER])


@pytest.mark.parametrize("is_fast", [True, False])
def test_prompt_and_completion_are_one_text(is_fast: bool) -> None:
    """Their tokens are those of the whole, and a token that has any of the completion in it is learned."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<e>", "Q", ":", "▁", "▁Paris", "▁is", "Paris"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<e>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Split(":", "isolated")]
    )
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<e>")
    if not is_fast:
        tokenizer = _Slow(tokenizer)
    (example,) = Encoder(tokenizer, "prompt", (), 9).encode({"prompt": "Q: ", "completion": "Paris is"}, "row 1")
    assert example.ids == tuple(map(words.index, ["Q", ":", "▁Paris", "▁is", "<e>"]))
    assert example.targets == (IGNORED, IGNORED, *example.ids[2:])


class _Slow:
    """A tokenizer that does not say where its tokens are."""

    is_fast = False

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.bos_token_id, self.eos_token_id, self.chat_template = None, tokenizer.eos_token_id, None

    def __call__(self, text: str, **options: Any) -> Any:
        return self._tokenizer(text, **options)


@pytest.mark.parametrize("trims", [True, False])
def test_tokens_of_white_space_are_given_or_learned_with_what_they_are_part_of(trims: bool) -> None:
    """Some tokenizers tell an empty place for them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate(["</s>", *"abQ:|", "Ċ", "Ġ", "ĊĊ", "Ġa", ":ĊĊ"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ"), ("Ġ", "a")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.ByteLevel(trim_offsets=trims)
    made.decoder = decoders.ByteLevel()
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ 'Q' if m.role == 'user' else 'Q:\n\n' }}{{ m.content }}|{{ '\n\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Q:\n\n' }}{% endif %}"
    )
    messages = [{"role": "user", "content": "a a"}, {"role": "assistant", "content": "b a"}]
    (example,) = Encoder(tokenizer, "messages", (), 50).encode({"messages": [*messages, *messages]}, "row 1")
    assert shown(tokenizer, example) == 2 * "Qa a|\n\nQ:\n\n(b a|\n\n)"
