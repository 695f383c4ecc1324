"""Pairs of answers: which rows are some, what is kept of them, and what is told before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allpass.cli.finetune import plan_fields
from allpass.errors import InvalidData, InvalidInput
from allpass.recipe.packing import Packed, pack
from allpass.recipe.reading import read
from allpass.recipe.rows import Checked, check
from allpass.recipe.settings import Recipe

ASK = {"role": "user", "content": "What color is the sky?"}
BLUE = {"role": "assistant", "content": "It is blue."}
GREEN = {"role": "assistant", "content": "It is green."}
SYSTEM = {"role": "system", "content": "Be brief."}
PAIRS = [{"prompt": f"{number}+1=", "chosen": str(number + 1), "rejected": "?"} for number in range(20)]


def checked(*rows: dict[str, Any], **options: Any) -> Checked:
    return check(read(rows), "dataset", **options)


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (
            {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
            {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        ),
        (
            {"chosen": "The sky is blue.", "rejected": "The sky is green."},
            {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        ),
        (
            {"prompt": "", "chosen": "The sky is blue.", "rejected": "The sky is green."},
            {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        ),
        ({"chosen": "Blue", "rejected": "Green"}, {"prompt": "", "chosen": "Blue", "rejected": "Green"}),
        ({"chosen": "Yes", "rejected": "Yes, sir"}, {"prompt": "Yes", "chosen": "", "rejected": ", sir"}),
        (
            {"prompt": [ASK], "chosen": [BLUE], "rejected": [GREEN]},
            {"prompt": [ASK], "chosen": [BLUE], "rejected": [GREEN]},
        ),
        (
            {"chosen": [SYSTEM, ASK, BLUE], "rejected": [SYSTEM, ASK, GREEN]},
            {"prompt": [SYSTEM, ASK], "chosen": [BLUE], "rejected": [GREEN]},
        ),
        (  # a text that the conversations begin with, too
            {"prompt": ASK["content"], "chosen": [ASK, BLUE], "rejected": [ASK, GREEN]},
            {"prompt": [ASK], "chosen": [BLUE], "rejected": [GREEN]},
        ),
        (  # a question that stands before the answers
            {"prompt": ASK["content"], "chosen": [BLUE], "rejected": GREEN},
            {"prompt": [ASK], "chosen": [BLUE], "rejected": [GREEN]},
        ),
        (
            {"prompt": [ASK], "chosen": BLUE["content"], "rejected": GREEN["content"]},
            {"prompt": [ASK], "chosen": [BLUE], "rejected": [GREEN]},
        ),
        (  # an earlier answer is given, not learned
            {"prompt": [ASK, GREEN, ASK], "chosen": [BLUE], "rejected": [GREEN]},
            {"prompt": [ASK, {**GREEN, "weight": 0}, ASK], "chosen": [BLUE], "rejected": [GREEN]},
        ),
    ],
)
def test_pairs_are_read_as_others_write_them(row: dict[str, Any], kept: dict[str, Any]) -> None:
    """With a prompt or without one, as texts and as conversations: the forms that TRL documents, and common others."""
    found = checked(row)
    assert found.rows == (kept,)
    assert found.shape == ("pair" if isinstance(kept["prompt"], str) else "pair_messages")


@pytest.mark.parametrize(
    ("rows", "task", "told"),
    [
        ([{"prompt": "a", "completion": "b"}], "dpo", "has prompt, completion; chosen and rejected are needed"),
        ([{"prompt": "a", "chosen": "b", "rejected": "c"}], "sft", "pairs of answers, and task is 'sft'"),
        ([{"question": "a", "chosen": "b", "rejected": "c"}], None, "would not be read: what was asked is the prompt"),
        ([{"prompt": "a", "chosen": " ", "rejected": "c"}], None, 'row 1, field "chosen": is empty'),
        ([{"prompt": 5, "chosen": [BLUE], "rejected": [GREEN]}], None, 'field "prompt": 5 is neither text nor a list'),
        ([PAIRS[0], {"prompt": "a", "chosen": "b"}], None, 'row 2, field "rejected": is missing'),
        ([PAIRS[0], {"prompt": "a", "chosen": "b", "rejected": [BLUE]}], None, 'row 2, field "rejected": [{'),
        (
            [{"chosen": [ASK, BLUE], "rejected": [ASK, GREEN]}, {"chosen": [ASK, BLUE], "rejected": 7}],
            None,
            "7 is not a list of messages",
        ),
        (
            [{"chosen": [ASK, BLUE], "rejected": [ASK]}],
            None,
            'field "rejected": does not end with a message of the ass',
        ),
        ([{"chosen": [ASK, {"role": "alien", "content": "x"}], "rejected": [ASK, BLUE]}], None, "'alien' is not one"),
    ],
)
def test_what_is_wrong_with_a_pair_is_told(rows: list[dict[str, Any]], task: str | None, told: str) -> None:
    """With the row and the field."""
    with pytest.raises(InvalidData) as refused:
        checked(*rows, task=task)
    assert told in refused.value.message


def test_rows_that_are_conversations_too_are_pairs_only_if_that_is_said() -> None:
    """UltraFeedback's have messages beside chosen and rejected, and were trained on as conversations before."""
    row = {"prompt": "x", "messages": [ASK, BLUE], "chosen": [ASK, BLUE], "rejected": [ASK, GREEN], "score_chosen": 8.0}
    assert checked(row).shape == "messages"
    found = checked(row, task="dpo")
    assert (found.shape, found.ignored) == ("pair_messages", ("messages", "score_chosen"))


def test_the_rows_say_what_is_learned() -> None:
    """Memory is that of two sequences for each row; no other job trains with it; an older machine takes it as far as
    it can."""
    packed = pack({"model": "org/tiny", "learning_rate": 1e-5}, PAIRS, held_out=0.2)
    assert (packed.recipe.task, packed.recipe.beta, packed.train_rows, packed.held_out_rows) == ("dpo", 0.1, 16, 4)
    training = packed.template.training
    assert (training.batch_size, training.micro_batch, training.steps) == (32, 4, 3)
    assert training.reference_pass is True
    assert packed.template.sharing is False
    assert Recipe.of(packed.parameters) == Recipe.of({**packed.recipe.parameters(), "edition": 1})
    assert "beta" not in packed.parameters
    assert pack({"model": "org/tiny", "beta": 0.3}, PAIRS).parameters["beta"] == 0.3
    assert pack({"model": "org/tiny"}, PAIRS).recipe.rate == 5e-6
    asked = plan_fields(packed, None)
    assert (asked["batch"], asked["layout"]["micro_batch"], asked["reference_pass"]) == (32, 4, True)


@pytest.mark.parametrize(
    ("settings", "rows", "told"),
    [
        ({"method": "full"}, PAIRS, "method: 'full' leaves no reference to learn pairs against"),
        ({"beta": 0}, PAIRS, "beta: 0 is not more than 0"),
        ({"beta": 0.2}, [{"text": "a"}, {"text": "b"}], "beta: 0.2 is for pairs of answers, and task is 'sft'"),
        ({"lora_dropout": 0.1}, PAIRS, "lora_dropout: 0.1 would have the model compared with its reference by chance"),
    ],
)
def test_settings_that_are_not_for_pairs_are_refused(
    settings: dict[str, Any], rows: list[dict[str, Any]], told: str
) -> None:
    """Before anything is sent, with the reason."""
    with pytest.raises(InvalidInput) as refused:
        pack({"model": "org/tiny", **settings}, rows)
    assert told in refused.value.message


def test_rows_to_measure_with_are_of_the_same_kind() -> None:
    """Texts with texts, conversations with conversations."""
    talk = [{"prompt": [ASK], "chosen": [BLUE], "rejected": [GREEN]}]
    assert pack({"model": "org/tiny"}, PAIRS, held_out=PAIRS[:2]).held_out_rows == 2
    with pytest.raises(InvalidData, match="has messages, and the rows that are trained on have texts"):
        pack({"model": "org/tiny"}, PAIRS, held_out=talk)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.training import tiny

    return str(tiny.llama(tmp_path_factory.mktemp("llama")))


def looked(model: str, rows: list[dict[str, Any]], **settings: Any) -> Packed:
    from transformers import AutoTokenizer

    from allpass.recipe.shapes import read_config

    tokenizer = AutoTokenizer.from_pretrained(model)
    config = read_config(Path(model))
    return pack({"model": model, **settings}, rows, held_out=0, tokenizer=tokenizer, config=config)


@pytest.mark.training
def test_both_answers_are_shown_and_counted(llama: str) -> None:
    """What was asked is read twice, and learned in neither."""
    found = looked(llama, PAIRS[:2]).looked
    assert found is not None
    assert found.tokens == 4 * 7
    assert list(found.examples(1)) == [
        "row 1, chosen: 7 tokens, 2 learned\n<s>0+1=⟦1</s>⟧",
        "row 1, rejected: 7 tokens, 2 learned\n<s>0+1=⟦?</s>⟧",
    ]
    assert found.remarks() == []


@pytest.mark.training
def test_pairs_that_say_nothing_are_left_out_and_told(llama: str) -> None:
    """Those whose answers are the same, or are so after they were cut; and refused, where they are many."""
    same = {"prompt": "1+1=", "chosen": "2", "rejected": "2"}
    cut = {"prompt": "x" * 40, "chosen": "2", "rejected": "3"}
    packed = looked(llama, [*PAIRS, same, cut], sequence_length=32)
    assert packed.looked is not None
    assert packed.train_rows == 20
    assert packed.looked.remarks() == [
        "1 of 22 training rows are longer than 32 tokens and were cut",
        "2 of 22 training rows do not say two different answers, and are not used: rows 21, 22",
    ]
    with pytest.raises(InvalidData, match="4 of 6 training rows do not have two different answers within"):
        looked(llama, [*PAIRS[:2], same, same, cut, cut], sequence_length=32)


@pytest.mark.training
def test_conversations_are_written_by_the_models_template(llama: str) -> None:
    """The last answer is what is learned; one that answers twice is refused where the template hides the first."""
    from transformers import AutoTokenizer

    from allpass.recipe.encoding import IGNORED, Encoder

    tokenizer = AutoTokenizer.from_pretrained(llama)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}[{{ m.role }}] {{ m.content }}|"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    encoder = Encoder(tokenizer, "pair_messages", (), 500)
    (row,) = checked({"prompt": [ASK, GREEN, ASK], "chosen": [BLUE], "rejected": [GREEN]}).rows
    chosen, rejected = encoder.encode(row, "row 1")
    told = [tokenizer.decode([one for one in each.targets if one != IGNORED]) for each in (chosen, rejected)]
    assert told == ["It is blue.|", "It is green.|"]
    (twice,) = checked({"prompt": [ASK], "chosen": [BLUE, ASK, BLUE], "rejected": [GREEN]}).rows
    with pytest.raises(ValueError, match=r"row 2 cannot be encoded: .*chosen has 2 answers"):
        encoder.encode(twice, "row 2")
