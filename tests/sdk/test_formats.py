"""Rows as other tools have them, and conversations with all that templates know of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from allpass.errors import InvalidData
from allpass.recipe.packing import pack
from allpass.recipe.reading import read
from allpass.recipe.rows import Checked, check

ASK, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"city": "Bonn"}}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def checked(*rows: dict[str, Any], **options: Any) -> Checked:
    return check(read(rows), "dataset", **options)


def talk(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages that a row comes to."""
    found = checked(row)
    assert found.shape == "messages"
    messages: list[dict[str, Any]] = found.rows[0]["messages"]
    return messages


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"instruction": "Hi", "input": "", "output": "Yo"}, [ASK, ANSWER]),
        ({"instruction": "Add", "input": "1 2", "output": "3", "text": "Below is ..."},
         [{"role": "user", "content": "Add\n\n1 2"}, {"role": "assistant", "content": "3"}]),
        ({"instruction": "Hi", "output": "Yo", "system": "Be.", "history": [["a", "b"]]},
         [{"role": "system", "content": "Be."}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          ASK, ANSWER]),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}, [ASK, ANSWER]),
        ({"conversations": [{"from": "system", "value": ""}, {"from": "human", "value": "Hi"},
                            {"from": "gpt", "value": "Yo", "weight": 0}, {"from": "human", "value": "Hi"},
                            {"from": "gpt", "value": "Yo", "weight": None}], "system": "Be."},
         [{"role": "system", "content": "Be."}, ASK, {**ANSWER, "weight": 0}, ASK, ANSWER]),
        ({"conversations": [ASK, ANSWER]}, [ASK, ANSWER]),
        ({"conversations": [{"from": "human", "value": "Hi"},
                            {"from": "function_call", "value": '{"name": "look_up", "arguments": {"city": "Bonn"}}'},
                            {"from": "observation", "value": "sunny"}, {"from": "gpt", "value": "Yo"}]},
         [ASK, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "sunny"},
          ANSWER]),
        ({"prompt": [ASK, ANSWER, ASK], "completion": [ANSWER]}, [ASK, {**ANSWER, "weight": 0}, ASK, ANSWER]),
        ({"messages": [ASK, ANSWER], "chosen": "a", "rejected": "b"}, [ASK, ANSWER]),
        ({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                       {**ANSWER, "name": None, "tool_calls": None, "weight": 1.0}]}, [ASK, {**ANSWER, "weight": 1}]),
    ],
    ids=["alpaca", "alpaca with input", "alpaca with history", "sharegpt", "sharegpt with weights", "conversations",
         "sharegpt with tools", "turns", "messages of preferences", "parts and nothings"],
)  # fmt: skip
def test_rows_of_other_tools_are_messages(row: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    """Whatever they call them."""
    assert talk(row) == messages


def test_what_templates_know_of_is_kept() -> None:
    """Calls in either form, whose they are, tools, thoughts and weights; the rest is named."""
    calls = [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Bonn"}'}}]
    messages = [
        {**ASK, "name": "ada"},
        {"role": "assistant", "tool_calls": calls, "weight": 0, "refusal": None, "at": 5},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {**ANSWER, "reasoning_content": "hm"},
    ]
    found = checked({"messages": messages, "tools": json.dumps([TOOL, {"name": "bare"}]), "id": 7})
    assert found.rows == (
        {
            "messages": [
                {**ASK, "name": "ada"},
                {"role": "assistant", "content": "", "tool_calls": calls, "weight": 0},
                {"role": "tool", "content": "", "tool_call_id": "c1"},
                {**ANSWER, "reasoning_content": "hm"},
            ],
            "tools": [TOOL, {"type": "function", "function": {"name": "bare"}}],
        },
    )
    assert found.ignored == ("id", "messages[].at")


def test_a_table_with_calls_in_some_of_its_rows_is_read(tmp_path: Path) -> None:
    """Parquet has every field in each of them, mostly empty."""
    other = {"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, ANSWER]}
    more = {"type": "function", "function": {"name": "count", "arguments": {"most": "5"}}}
    third = {"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": [more]}, ANSWER], "tools": [TOOL]}
    rows = [{"messages": [ASK, ANSWER], "tools": None}, other, third]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = check(read(tmp_path / "a.parquet"), "a.parquet")
    assert found.rows[0] == {"messages": [ASK, ANSWER]}
    assert found.rows[1]["messages"][1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert found.rows[2]["messages"][1]["tool_calls"] == [more]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"prompt": "a", "completion": "b", "label": False}], "row 1: has a completion with a label of good or bad"),
        ([{"instruction": "Hi", "output": ""}], 'row 1, field "output": is empty'),
        ([{"instruction": "Hi", "output": "Yo"}, {"instruction": "Hi"}], 'row 2, field "output": is missing'),
        ([{"instruction": " ", "output": "Yo"}], 'row 1, field "instruction": is empty'),
        ([{"instruction": "Hi", "output": "Yo", "history": ["a"]}], 'field "history": is not a list of pairs'),
        ([{"conversations": [{"from": "bot", "value": "x"}]}], "message 1, from: 'bot' is not one of human"),
        ([{"conversations": "x"}], "'x' is not a list of turns"),
        (
            [{"conversations": [{"from": "gpt", "value": 5}]}],
            'field "conversations", message 1, content: 5 is not text',
        ),
        ([{"conversations": [{"from": "human", "value": "Hi"}]}], "does not end with a message of the assistant"),
        (
            [{"conversations": [{"from": "function_call", "value": "{"}, {"from": "gpt", "value": "x"}]}],
            "'{' is not a list",
        ),
        (
            [{"prompt": [ASK], "completion": [ANSWER]}, {"prompt": "a", "completion": "b"}],
            "row 2, field \"prompt\": 'a' is",
        ),
        ([{"messages": [ASK, {**ANSWER, "weight": 0.5}]}], "message 2, weight: 0.5 is neither 0 nor 1"),
        ([{"messages": [ASK, {**ANSWER, "weight": 0}]}], "has no answer with a weight of 1: there is nothing to learn"),
        ([{"messages": [{**ASK, "weight": 1}, ANSWER]}], "message 1, weight: only what the assistant says is learned"),
        (
            [{"messages": [ASK, {**ANSWER, "tool_calls": [{"name": "f", "arguments": "["}]}]}],
            "its arguments, '[', are no",
        ),
        (
            [{"messages": [ASK, {**ANSWER, "tool_calls": [{"id": "x"}]}]}],
            "call 1: {'id': 'x'} has no function with a name",
        ),
        ([{"messages": [{**ASK, "tool_calls": [CALL]}, ANSWER]}], "is said by the user: only the assistant calls"),
        (
            [{"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ANSWER]}],
            "{'type': 'image_url'} is not text",
        ),
        ([{"messages": [ASK, {**ANSWER, "name": "\ud800"}]}], "message 2, name: has half of a character"),
        ([{"messages": [ASK, ANSWER], "tools": "x"}], "field \"tools\": 'x' is not the JSON of a list"),
        ([{"messages": [ASK, ANSWER], "tools": [{"type": "function"}]}], "tool 1: {'type': 'function'} has no name"),
        (
            [{"messages": [ASK, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": {1}}}]}]}],
            "as JSON",
        ),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_the_rows(rows: list[dict[str, Any]], told: str) -> None:
    """With the row, the field and the message; answers that are marked as good or bad are refused as what they are."""
    with pytest.raises(InvalidData) as refused:
        checked(*rows)
    assert told in refused.value.message


def test_one_bad_row_of_many_is_named() -> None:
    """The others are read all the same: only it is told."""
    rows = [{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]} for _ in range(50)]
    rows[30]["conversations"][1]["from"] = "alien"
    with pytest.raises(InvalidData) as refused:
        checked(*rows)
    assert refused.value.count == 1
    assert "row 31" in refused.value.message


def test_rows_to_measure_with_may_be_in_another_format() -> None:
    """As long as they are conversations, too."""
    alpaca = [{"instruction": f"Hi {number}", "output": "Yo"} for number in range(3)]
    packed = pack({"model": "m"}, alpaca, held_out=[{"messages": [ASK, ANSWER]}])
    assert (packed.shape, packed.train_rows, packed.held_out_rows) == ("messages", 3, 1)
