"""Templates: what is wrong is told with its place, its value and a value that would be accepted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.errors import InvalidTemplate
from allpass.templates import check_template, load_template, template_schema
from allpass.wire.template import Template

LOCATIONS = [
    ("training", "batch_size"), ("training", "epochs"), ("training", "method"), ("gpu", "count"), ("gpu", "memory_gb"),
    ("gpu", "type"), ("cpus",), ("memory_gb",), ("kind",), ("elastic",), ("caps", "max_cost_usd"), ("name",),
    ("checkpoint_interval_s",), ("labels",), ("placement", "locked"),
]  # fmt: skip
VALUES = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=300),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=2),
)


def told(content: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidTemplate) as refused:
        check_template(content, "template.json")
    return refused.value.lines()[0], refused.value.problems[0].hint


@pytest.mark.parametrize(
    ("content", "line", "hint"),
    [
        (
            {"training": {"batch_size": -4}},
            "template.json, training.batch_size: -4 is not a positive integer",
            '"batch_size": 4',
        ),
        ({"gpu": {"count": 0}}, "template.json, gpu.count: 0 is not a positive integer", '"count": 1'),
        ({"gpu": {"count": 99}}, "template.json, gpu.count: 99 is more than 64", '"count": 64'),
        ({"gpu": {"memory_gb": -40}}, "template.json, gpu.memory_gb: -40 is not a positive number", '"memory_gb": 40'),
        ({"training": {"steps": "many"}}, 'template.json, training.steps: "many" is not an integer', '"steps": 1'),
        (
            {"training": {"batchsize": 4}},
            "template.json, training.batchsize: there is no such field",
            '"batch_size"',
        ),
        (
            {"training": {"method": "LoRA"}},
            'template.json, training.method: "LoRA" is not one of full, lora, qlora or norm-tuning',
            '"method": "lora"',
        ),
        ({"elastic": "perhaps"}, 'template.json, elastic: "perhaps" is neither true nor false', '"elastic": true'),
        ({"labels": []}, "template.json, labels: [] is not an object of fields", '"labels": {}'),
        ({"model": {"parameters": 7}}, "template.json, model.name: is missing", '"name": ...'),
        (
            {"gpu": {"count": 4, "max_count": 2}},
            "template.json, gpu: max_count (2) is below count (4)",
            '"gpu": {}',
        ),
        ([1], "template.json: [1] is not an object of fields", '{"gpu": {"count": 1}}'),
    ],
)
def test_each_mistake_is_told_with_its_mend(content: Any, line: str, hint: str | None) -> None:
    """Place, value, what is wrong, and what would be accepted."""
    assert told(content) == (line, hint)


def test_every_mistake_is_told_at_once() -> None:
    """Two wrong fields are two problems: nobody has to submit twice to see both."""
    with pytest.raises(InvalidTemplate) as refused:
        check_template({"cpus": 0, "gpu": {"cuont": 1}}, "t.yaml")
    assert [one.where for one in refused.value.problems] == ["gpu.cuont", "cpus"]
    assert len(str(refused.value).splitlines()) == 2


@given(st.sampled_from(LOCATIONS), VALUES)
def test_suggestions_are_accepted(where: tuple[str, ...], value: Any) -> None:
    """Whatever is written anywhere: it is accepted, or refused with a suggestion that is accepted in that place."""
    content: dict[str, Any] = {where[-1]: value}
    for part in reversed(where[:-1]):
        content = {part: content}
    try:
        check_template(content, "t.json")
    except InvalidTemplate as error:
        problem = error.problems[0]
        assert problem.where == ".".join(where) or problem.where.startswith(".".join(where) + ".")
        assert problem.hint is not None
        assert problem.hint.startswith(f'"{problem.where.split(".")[-1]}": ')
        mended: Any = json.loads("{" + problem.hint + "}")
        for part in reversed(problem.where.split(".")[:-1]):
            mended = {part: mended}
        check_template(mended, "t.json")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.json", '{"cpus": 2,}', r"t\.json, line 1, column \d+: is not JSON"),
        ("t.json", '{"cpus": 2, "cpus": 3}', "'cpus' is given twice"),
        ("t.json", "[" * 100_000, "nested too deeply|is not JSON"),
        ("t.yaml", "cpus: [1", r"t\.yaml, line 1, column \d+: is not YAML"),
        ("t.yml", "- 1\n", "is not an object of fields"),
        ("t.json", "\xff", "is not JSON"),
    ],
)
def test_files_that_cannot_be_read_are_told_by_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    """A syntax error names the file and the line."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidTemplate, match=words):
        load_template(tmp_path / name)


def test_a_missing_file_suggests_the_one_that_is_there(tmp_path: Path) -> None:
    """A misspelt file name is answered with the near one."""
    (tmp_path / "template.json").write_text("{}")
    with pytest.raises(InvalidTemplate, match="there is no such file") as refused:
        load_template(tmp_path / "tempalte.json")
    assert str(refused.value.hint).endswith("template.json")


def test_json_yaml_and_dict_mean_the_same(tmp_path: Path) -> None:
    """All ways to write a template give the same template; None is the empty one."""
    content = {"gpu": {"count": 2, "type": "A100"}, "training": {"steps": 10}}
    (tmp_path / "t.json").write_text(json.dumps(content))
    (tmp_path / "t.yaml").write_text("gpu: {count: 2, type: A100}\ntraining:\n  steps: 10\n")
    expected = Template.model_validate(content)
    assert load_template(str(tmp_path / "t.json")) == load_template(tmp_path / "t.yaml") == expected
    assert load_template(content) == load_template(expected) == expected
    assert load_template(None) == Template()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_carry_are_refused(value: float) -> None:
    """NaN and infinity never reach the wire."""
    with pytest.raises(InvalidTemplate):
        check_template({"target": {"name": "loss", "value": value}}, "t.json")
    with pytest.raises(InvalidTemplate):
        check_template({"training": {"epochs": abs(value)}}, "t.json")


def test_the_schema_knows_every_field() -> None:
    """The published JSON Schema lists what the model has, and closes it to anything else."""
    schema = template_schema()
    assert set(schema["properties"]) == set(Template.model_fields)
    assert schema["additionalProperties"] is False
