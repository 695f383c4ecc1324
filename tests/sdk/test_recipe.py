"""The built-in recipe on this side: settings, rows and what is held out are checked before anything is sent."""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import allpass
from allpass.client import Client
from allpass.errors import InvalidData, InvalidInput, InvalidTemplate
from allpass.recipe.packing import SCRIPT, pack
from allpass.recipe.reading import read
from allpass.recipe.rows import check
from allpass.recipe.settings import EDITION, Recipe
from allpass.recipe.splitting import numbers_held_out
from allpass.templates import load_template
from tests.sdk.fake_service import FakeService

PAIRS = [{"prompt": f"question {number}", "completion": f"answer {number}"} for number in range(20)]
LABELLED = [{"text": f"text {number}", "label": number % 3} for number in range(30)]


def lines(rows: Sequence[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"batch_size": -4}, "batch_size: -4 is less than 1", "batch_size=4"),
        ({"batch_size": True}, "batch_size: True is not a whole number", "batch_size=1"),
        ({"method": "lorra"}, "method: 'lorra' is not one of lora, qlora, full", 'method="lora"'),
        ({"learning_rat": 1e-3}, "learning_rat: the recipe has no such setting", "learning_rate"),
        ({"learning_rate": 0}, "learning_rate: 0 is not more than 0", "learning_rate=1"),
        ({"learning_rate": float("nan")}, "learning_rate: nan is not a finite number", "learning_rate=0.1"),
        ({"lora_dropout": 1.0}, "lora_dropout: 1.0 is not below 1", "lora_dropout=0.5"),
        ({"target": {"accuracy": 0.9}}, "target: 'accuracy' is not measured", 'target={"eval_accuracy": 0.9}'),
        ({"target": {"eval_accuracy": 90}}, "target.eval_accuracy: 90 is not below 1", "target.eval_accuracy=0.5"),
        ({"target": {}}, "target: {} is not one metric", 'target={"eval_accuracy": 0.9}'),
        ({"micro_batch": 32}, "micro_batch: 32 is more than the batch_size, 16", "micro_batch=16"),
        ({"method": "full", "precision": "fp16"}, "precision: 'fp16' has too small a range", 'precision="autocast"'),
        ({"method": "qlora", "precision": "fp32"}, "precision: 'fp32' is not for 4-bit", 'precision="bf16"'),
        ({"lora_targets": []}, "lora_targets: () names no matrices", 'lora_targets="all-linear"'),
        ({"model": " "}, "model: ' ' is no text", 'model="..."'),
        ({"checkpointing": 1}, "checkpointing: 1 is neither true nor false", "checkpointing=True"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_the_fix(settings: dict[str, Any], message: str, hint: str) -> None:
    """Whatever is wrong, the error says where, what, and what would be accepted."""
    with pytest.raises(InvalidInput) as refused:
        Recipe.of({"model": "m", **settings})
    assert refused.value.message.startswith(message)
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(hint)


def test_a_full_fine_tuning_in_weights_of_16_bits_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    """Most of its steps would be rounded away. One that was taken before is still what it was."""
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]
    with pytest.raises(InvalidInput, match="precision: 'bf16' rounds most steps of a full fine-tuning away") as refused:
        pack({"model": "m", "method": "full", "precision": "bf16"}, rows, held_out=0)
    assert refused.value.hint == 'precision="autocast"'
    assert Recipe.of({"model": "m", "method": "full", "precision": "bf16"}).numbers == "bf16"
    assert pack({"model": "m", "method": "full"}, rows, held_out=0).recipe.numbers == "autocast"


@given(
    st.builds(
        dict,
        model=st.text(min_size=1, max_size=5).filter(str.strip),
        method=st.sampled_from(["lora", "full"]),
        epochs=st.floats(0.1, 50),
        batch_size=st.integers(1, 512),
        target=st.none() | st.builds(dict, eval_loss=st.floats(0, 9)),
        lora_targets=st.just("all-linear") | st.lists(st.sampled_from(["q_proj", "v_proj"]), min_size=1),
    ),
    st.integers(1, 10_000),
)
def test_a_recipe_travels_as_parameters(settings: dict[str, Any], rows: int) -> None:
    """As JSON and back it is the same; its last step, and only steps up to it, are evaluated at the end of an epoch."""
    recipe = Recipe.of(settings)
    assert Recipe.of(json.loads(json.dumps(recipe.parameters()))) == recipe
    last = recipe.total_steps(rows)
    assert recipe.evaluates_at(last, rows)
    assert (last - 1) * recipe.batch_size < recipe.epochs * (rows + recipe.batch_size)
    assert recipe.rows_at_once * recipe.accumulation >= recipe.batch_size


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "a.jsonl",
            lines([{"prompt": "p", "completion": "c"}]) * 2 + '{"prompt": "p"}\n',
            'row 3, field "completion": is missing',
        ),
        ("a.jsonl", '\n{"prompt": "p", "completion": 5}\n', 'row 1 (line 2), field "completion": 5 is not text'),
        ("a.jsonl", '{"prompt": "p", "completion": "  "}', 'row 1, field "completion": is empty'),
        ("a.jsonl", '{"prompt": "p"', "row 1: is not JSON"),
        ("a.jsonl", "[1]", "row 1: is not an object"),
        ("a.jsonl", "[\n{}]", "row 1: is not JSON: begins a list"),
        ("a.json", "\n[{}]", "row 1: has no fields; prompt and completion"),
        ("a.json", "[{}, 5]", "row 2: is not an object"),
        ("a.json", "[{},", "is not JSON: Expecting value"),
        ("a.json", b'[{"prompt": "\xff"}]', "is not UTF-8 text"),
        ("a.jsonl", "", "there are no rows"),
        ("a.jsonl", '{"question": "q", "completion": "c"}', "row 1: has question, completion; prompt and completion"),
        ("a.jsonl", '{"prompt": "p", "completion": "c", "messages": []}', "more than one of"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "x"}]}', "does not end with a message of the assistant"),
        ("a.jsonl", '{"messages": [{"role": "bot", "content": "x"}]}', "message 1, role: 'bot' is not one of"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}', "message 1: has no role and content"),
        ("a.jsonl", '{"messages": "hello"}', "'hello' is not a list of messages"),
        ("a.jsonl", lines([{"text": "a", "label": 1}, {"text": "b", "label": 1}]), "every row has '1': two are needed"),
        ("a.jsonl", lines([{"text": "a", "label": 0.5}]), 'row 1, field "label": 0.5 is a measurement'),
        ("a.csv", "text,label\nx,1\ny\n", "row 2 (line 3): has 1 cells, and there are 2 columns"),
        ("a.csv", "text,text\nx,1\n", "are no names of columns, each once"),
        ("a.csv", 'text,label\n"x,1\n', "is not CSV"),
        ("a.txt", "x", "'.txt' is none of .jsonl"),
        ("a.jsonl", b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, name: str, content: str | bytes, told: str) -> None:
    """File, row and field are told, before anything is sent."""
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidData) as refused:
        check(read(path), name)
    assert refused.value.message.startswith(name)
    assert told in refused.value.message


def test_only_the_first_problems_are_told_and_all_are_counted(tmp_path: Path) -> None:
    """Twenty wrong rows are ten lines and a sum."""
    (tmp_path / "a.jsonl").write_text(lines([{"prompt": "p", "completion": ""}] * 20))
    with pytest.raises(InvalidData) as refused:
        check(read(tmp_path / "a.jsonl"), "a.jsonl")
    assert refused.value.count == 20
    assert refused.value.message.splitlines()[-1] == "and 10 more"
    assert len(refused.value.problems) == 10


def test_csv_and_json_lines_of_the_same_rows_are_the_same(tmp_path: Path) -> None:
    """Quotes, commas, line breaks and a byte-order mark are of the format, not of the text."""
    (tmp_path / "a.csv").write_text('\ufefftext,label,id\n"a, ""b""\nc",yes,1\nplain,no,2\n', encoding="utf-8")
    (tmp_path / "a.jsonl").write_text(lines([{"text": 'a, "b"\nc', "label": "yes"}, {"text": "plain", "label": "no"}]))
    one, other = (check(read(tmp_path / name), name) for name in ("a.csv", "a.jsonl"))
    assert one.rows == other.rows
    assert (one.labels, one.ignored, other.ignored) == (("no", "yes"), ("id",), ())


def test_a_list_of_objects_is_read_like_its_lines(tmp_path: Path) -> None:
    """Laid out as its writer liked, with or without a byte-order mark."""
    (tmp_path / "a.json").write_text("\ufeff\n" + json.dumps(PAIRS, indent=2), encoding="utf-8")
    (tmp_path / "b.json").write_text(lines(PAIRS))
    assert (
        [row.values for row in read(tmp_path / "a.json")] == [row.values for row in read(tmp_path / "b.json")] == PAIRS
    )


def test_parquet_needs_pyarrow_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the error says what to install."""
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else real(name))
    with pytest.raises(InvalidData, match="pyarrow, which is not installed") as refused:
        read(tmp_path / "a.parquet")
    assert refused.value.hint == "pip install pyarrow"


def test_parquet_is_read_batch_by_batch(tmp_path: Path) -> None:
    """The rows of a real file of several row groups, in their order, with their numbers; texts of every kind."""
    texts = [{"prompt": f'{number}: ä\n,"', "completion": ""} for number in range(1, 6)] + PAIRS
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(texts), file, row_group_size=2, compression="zstd")
    rows = read(file)
    assert [dict(row.values) for row in rows] == texts
    assert rows[4].place == "row 5"
    (tmp_path / "a.jsonl").write_text(lines(texts[5:]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(PAIRS), file)
    assert check(read(file), "a.parquet").rows == check(read(tmp_path / "a.jsonl"), "a.jsonl").rows


def test_what_is_wrong_in_parquet_is_told_by_row(tmp_path: Path) -> None:
    """A missing value names its row and field; a file that is none, or was cut, is refused in our words."""
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([*PAIRS[:3], {"prompt": None, "completion": "c"}]), file)
    with pytest.raises(InvalidData, match='row 4, field "prompt": None is not text'):
        check(read(file), "a.parquet")
    whole = file.read_bytes()
    for damaged in (b"no", whole[:-9], b""):
        file.write_bytes(damaged)
        with pytest.raises(InvalidData, match="is not Parquet: "):
            read(file)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.sampled_from("ab")), min_size=1, max_size=60),
    st.floats(0, 0.9),
    st.integers(0, 5),
)
def test_what_is_held_out_follows_from_the_rows_alone(pairs: list[tuple[str, str]], fraction: float, seed: int) -> None:
    """Nothing is lost or on both sides, each label stays to train on, and the order of rows does not matter."""
    rows = [{"text": text, "label": label} for text, label in pairs]
    aside = numbers_held_out(rows, fraction, seed)
    train, held_out = [row for number, row in enumerate(rows) if number not in aside], [rows[one] for one in aside]
    key = json.dumps
    assert sorted(map(key, [*train, *held_out])) == sorted(map(key, rows))
    assert not {key(row) for row in train} & {key(row) for row in held_out}
    assert {row["label"] for row in train} == {row["label"] for row in rows}
    again = numbers_held_out(rows[::-1], fraction, seed)
    assert {key(rows[::-1][one]) for one in again} == {key(row) for row in held_out}
    if fraction == 0:
        assert not held_out


def test_labels_are_collected_in_their_own_order() -> None:
    """Numbers by value, names by letter; they travel with the rows, and a classifier is trained."""
    packed = pack({"model": "m"}, [{"text": str(number), "label": number} for number in (10, 9, 2, 10)], held_out=0)
    assert (packed.labels, packed.recipe.task) == (("2", "9", "10"), "classification")
    sft = pack({"model": "m", "task": "sft"}, LABELLED)
    assert (sft.shape, sft.recipe.task, sft.ignored) == ("text", "sft", ("label",))


def test_held_out_rows_of_their_own_have_the_same_shape_and_labels() -> None:
    """A label that is never trained on is named with its row."""
    own = pack({"model": "m"}, LABELLED, held_out=[{"text": "x", "label": 2}])
    assert (own.train_rows, own.held_out_rows) == (30, 1)
    with pytest.raises(InvalidData, match=r"row 1, field \"label\": '7' does not occur in dataset"):
        pack({"model": "m"}, LABELLED, held_out=[{"text": "x", "label": 7}, {"text": "x", "label": 2}])
    with pytest.raises(InvalidData, match='field "label": is missing'):
        pack({"model": "m"}, LABELLED, held_out=[{"text": "x"}, {"text": "y"}])


@pytest.mark.parametrize("settings", [{"target": {"eval_loss": 1.0}}, {"patience": 2}])
def test_a_target_needs_rows_to_measure_with(settings: dict[str, Any]) -> None:
    """Without held-out rows there is nothing that could end training early."""
    with pytest.raises(InvalidInput, match="there are no held-out rows"):
        pack({"model": "m", **settings}, PAIRS, held_out=0)
    with pytest.raises(InvalidData, match="all 3 rows say the same"):
        pack({"model": "m", **settings}, PAIRS[:1] * 3)


def test_the_template_says_what_admission_needs() -> None:
    """Model, method, batch, length and precision are stated: the memory that the job needs is predicted from these."""
    packed = pack({"model": "org/llama-3-8b", "method": "qlora", "target": {"eval_accuracy": 0.5}}, PAIRS)
    template = packed.template
    assert template.model is not None
    assert (template.model.name, packed.train_rows, packed.held_out_rows) == ("org/llama-3-8b", 18, 2)
    told = template.training.model_dump(exclude_none=True)
    assert told == {
        "steps": 6, "batch_size": 16, "sequence_length": 1024, "learning_rate": 2e-4, "method": "qlora",
        "precision": "bf16", "precision_by_gpu": True, "lora_rank": 16, "narrow_adapters": True, "loss": "recomputed",
    }  # fmt: skip
    assert template.target is not None
    assert (template.target.name, template.target.goal) == ("eval_accuracy", "max")
    assert any(package.startswith("bitsandbytes") for package in packed.pip)


@pytest.mark.parametrize(
    ("template", "where"),
    [
        ({"training": {"steps": 5}}, "training.steps"),
        ({"model": {"name": "x"}}, "model"),
        ({"gpu": {"count": 9}}, "gpu.count"),
        ({"gpu": {"count": 2, "max_count": 9}}, "gpu.max_count"),
    ],
)
def test_a_template_may_not_say_what_the_recipe_fills_in(template: dict[str, Any], where: str) -> None:
    """Two truths would be one too many."""
    with pytest.raises(InvalidTemplate) as refused:
        pack({"model": "m"}, PAIRS, template=load_template(template))
    assert [problem.where for problem in refused.value.problems] == [where]


def test_the_rest_of_a_template_is_kept() -> None:
    """GPU type, caps and labels are the user's."""
    given_template = {"gpu": {"type": "H100"}, "caps": {"max_cost_usd": 3}, "labels": {"team": "nlp"}}
    packed = pack({"model": "m"}, PAIRS, template=load_template(given_template))
    kept = packed.template.model_dump(exclude_unset=True)
    assert {name: kept[name] for name in given_template} == given_template


def test_the_same_rows_are_the_same_bundle() -> None:
    """Settings are parameters: other settings send no byte again. The script is valid and says where the trainer is."""
    bundles = {pack({"model": "m", "epochs": epochs}, PAIRS).bundle.sha256 for epochs in (1, 2)}
    assert len(bundles) == 1
    compile(SCRIPT, "finetune.py", "exec")
    assert "from workers.trainer.main import main" in SCRIPT


def test_a_trainer_from_before_editions_can_take_a_new_job() -> None:
    """It refuses settings that it does not know, so that what it does not need to know is beside the rows."""
    packed = pack({"model": "m"}, PAIRS)
    assert not {"edition", "packing"} & packed.parameters.keys()
    with tarfile.open(fileobj=io.BytesIO(packed.bundle.content)) as bundle:
        facts = bundle.extractfile("recipe.json")
        assert facts is not None
        assert json.load(facts) == {"shape": "prompt", "labels": [], "edition": EDITION}


def test_finetune_submits_a_job_that_carries_all_of_it(service: FakeService, client: Client) -> None:
    """One call: rows uploaded, app registered with its packages, job submitted with the settings as parameters."""
    options: dict[str, Any] = {"epochs": 2, "target": {"eval_loss": 1.5}, "soft_deadline": "6hr", "name": "first"}
    job = allpass.finetune("org/tiny", PAIRS, client=client, user_name="ada", **options)
    sent = service.jobs[job.id]
    asked = {"model": "org/tiny", "task": "sft", "epochs": 2, "target": {"eval_loss": 1.5}}
    assert Recipe.of(sent["parameters"]) == replace(Recipe.new(asked), edition=1)
    (app,) = service.apps.values()
    assert (app["name"], app["entrypoint"]) == ("tiny-dataset", "finetune.py")
    assert any(package.startswith("peft") for package in app["runtime"]["pip"])
    again = allpass.finetune("org/tiny", PAIRS, client=client, user_name="ada", learning_rate=1e-3)
    assert again.id != job.id
    assert len({app["bundle_sha256"] for app in service.apps.values()}) == 1


def test_nothing_is_sent_when_anything_is_wrong(service: FakeService, client: Client) -> None:
    """A wrong row, setting or deadline is found first."""
    wrong: list[dict[str, Any]] = [{"epochs": 0}, {"soft_deadline": "soon"}, {"from_checkpoint": "x"}]
    for options in wrong:
        with pytest.raises(InvalidInput):
            allpass.finetune("org/m", PAIRS, client=client, **options)
    with pytest.raises(InvalidData):
        allpass.finetune("org/m", [{"prompt": "p"}], client=client)
    assert service.paths() == []
