"""The parts of the built-in recipe's trainer: what is learned of a row, when training ends, and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.errors import InvalidInput
from allpass.recipe.libraries import installed
from allpass.recipe.settings import Recipe
from allpass.training.session import Session
from tests.training.recipes import Course
from workers.trainer.progress import Progress
from workers.trainer.stream import RowStream

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(16)]
VOTES = [{"text": f"{word} {number}", "label": label} for label, word in (("for", "aye"), ("against", "no"))
         for number in range(8)]  # fmt: skip
QUICK: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 5e-3, "precision": "fp32"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.training import tiny

    return tiny.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.training import tiny

    return tiny.write_rows(tmp_path_factory.mktemp("sums"), "prompt", SUMS[:12], SUMS[12:])


def encoded(row: dict[str, Any], shape: str, most_tokens: int = 500, template: str | None = None) -> tuple[str, str]:
    """The whole text of a row as the model sees it, and the part of it that is learned."""
    from allpass.recipe.encoding import IGNORED, Encoder
    from tests.training import tiny

    tokenizer = tiny.byte_tokenizer()
    tokenizer.chat_template = template
    (example,) = Encoder(tokenizer, shape, (), most_tokens).encode(row, "row 1")
    learned = [token for token in example.targets if token != IGNORED]
    assert example.counted == sum(one != IGNORED for one in example.targets[1:])
    return tokenizer.decode(list(example.ids)), tokenizer.decode(learned)


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yo"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "So long"},
]
CHAT = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}|\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.mark.parametrize(
    ("row", "shape", "template", "whole", "learned"),
    [
        ({"prompt": "1+1=", "completion": "2"}, "prompt", None, "<s>1+1=2</s>", "2</s>"),
        ({"text": "once"}, "text", None, "<s>once</s>", "once</s>"),
        (
            {"messages": TALK}, "messages", None,
            "<s>system: Be brief.\nuser: Hi\nassistant: Yo</s>user: Bye\nassistant: So long</s>", "Yo</s>So long</s>",
        ),
        (
            {"messages": TALK}, "messages", CHAT,
            "[system] Be brief.|\n[user] Hi|\n[assistant] Yo|\n[user] Bye|\n[assistant] So long|\n", "Yo|\nSo long|\n",
        ),
    ],
    ids=["completion", "text", "messages", "chat template"],
)  # fmt: skip
def test_only_the_answers_are_learned(
    row: dict[str, Any], shape: str, template: str | None, whole: str, learned: str
) -> None:
    """What is asked is given; answers are learned to their end, in the words of the model's own template."""
    assert encoded(row, shape, template=template) == (whole, learned)


def test_what_is_too_long_is_cut_at_its_end() -> None:
    """A row that has no answer left teaches nothing, and counts for nothing."""
    assert encoded({"prompt": "1+1=", "completion": "234"}, "prompt", 7) == ("<s>1+1=23", "23")
    assert encoded({"prompt": "1+1=", "completion": "234"}, "prompt", 4) == ("<s>1+1", "")


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 3))
def test_each_epoch_has_every_row_once(count: int, batch_size: int, rows_at_once: int, seed: int) -> None:
    """In an order of its own; micro-batches are the step's rows, cut."""
    from allpass.recipe.encoding import Example

    examples = tuple(Example((number,), (number,)) for number in range(count))
    stream = RowStream(tuple((one,) for one in examples), batch_size=batch_size, rows_at_once=rows_at_once, seed=seed)
    for epoch in range(2):
        steps = range(epoch * stream.steps_per_epoch + 1, (epoch + 1) * stream.steps_per_epoch + 1)
        rows = [one for step in steps for one in stream.rows(step)]
        assert sorted(one.ids for one in rows) == [one.ids for one in examples]
        for step in steps:
            pieces = stream.micro_batches(step)
            assert [one for piece in pieces for one in piece] == stream.rows(step)
            assert all(1 <= len(piece) <= rows_at_once for piece in pieces)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.integers(1, 6), st.integers(1, 4))
def test_the_sequences_of_a_row_are_in_one_step(lengths: list[int], batch_size: int, rows_at_once: int) -> None:
    """How many steps an epoch has follows from the rows, and a micro-batch is never larger than was said."""
    from allpass.recipe.encoding import Example

    rows = tuple(
        tuple(Example((number, part), (number, part)) for part in range(length))
        for number, length in enumerate(lengths)
    )
    stream = RowStream(rows, batch_size=batch_size, rows_at_once=rows_at_once, seed=0)
    assert (stream.count, stream.steps_per_epoch) == (len(rows), -(-len(rows) // batch_size))
    seen = []
    for step in range(1, stream.steps_per_epoch + 1):
        pieces = stream.micro_batches(step)
        assert all(1 <= len(piece) <= rows_at_once for piece in pieces)
        taken = [one for piece in pieces for one in piece]
        numbers = {one.ids[0] for one in taken}
        assert len(taken) == sum(lengths[number] for number in numbers)
        seen += taken
    assert sorted(one.ids for one in seen) == sorted(one.ids for one in stream.examples)


@given(st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=20), st.integers(1, 4), st.floats(0, 1))
def test_training_ends_when_the_target_is_reached_or_hope_is_lost(
    values: list[float], patience: int, wanted: float
) -> None:
    """The best is the first of the highest; a state that was saved and restored decides as the one before."""
    recipe = Recipe(model="m", target={"eval_accuracy": wanted}, patience=patience)
    progress = Progress(recipe)
    seen: list[float] = []
    for step, value in enumerate(values, 1):
        seen.append(value)
        assert progress.add(step, {"eval_accuracy": value, "eval_loss": 1.0}) == (value > max([*seen[:-1], -1]))
        assert progress.step == 1 + seen.index(max(seen))
        behind = step - progress.step
        assert (progress.ended is not None) == (value >= wanted or behind >= patience)
        restored = Progress(recipe)
        restored.restore(json.loads(json.dumps(progress.state())))
        progress = restored


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    """Nor does it reach a target."""
    progress = Progress(Recipe(model="m", target={"eval_loss": 5}))
    assert progress.add(1, {"eval_loss": 7.0})
    assert not progress.add(2, {"eval_loss": float("nan")})
    assert (progress.step, progress.ended) == (1, None)


def logits(model: Any, text: str) -> Any:
    import torch

    from tests.training import tiny

    with torch.no_grad():
        return model.eval()(**tiny.byte_tokenizer()(text, return_tensors="pt")).logits


def test_the_adapter_is_pefts_own(llama: str, sums: Path, tmp_path: Path) -> None:
    """PEFT loads it on the base; what it says about itself is in the same order in every process."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    course = Course(tmp_path, sums, {"model": llama, **QUICK, "lora_dropout": 0.0}).run()
    base = AutoModelForCausalLM.from_pretrained(llama)
    before = logits(base, "3+1=").clone()
    loaded = PeftModel.from_pretrained(base, course.output)
    assert not logits(loaded, "3+1=").equal(before)
    config = json.loads((course.output / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
    assert config["base_model_name_or_path"] == llama
    assert AutoTokenizer.from_pretrained(course.output).decode([1]) == "<s>"
    points = course.points()
    assert points[8]["eval_loss"] < points[2]["eval_loss"]
    summary = course.summary()
    best = min((step for step in points if "eval_loss" in points[step]), key=lambda step: points[step]["eval_loss"])
    assert (summary["best_step"], summary["last_step"]) == (best, 8)
    assert summary["metrics"] == {name: points[best][name] for name in ("eval_loss", "eval_accuracy")}
    assert Recipe.of(summary["recipe"]) == Recipe.of({**course.parameters, "micro_batch": 4, "checkpointing": False})
    libraries, told = [line["training"] for line in course.lines() if "training" in line]
    layout = {"micro_batch": 4, "accumulation": 2, "sequence": 1024, "checkpointing": False, "sharding": "none"}
    assert libraries == {"libraries": installed()}
    assert told == {**layout, "total_steps": 8}


def test_what_is_left_is_the_best_and_not_the_last(llama: str, sums: Path, tmp_path: Path) -> None:
    """With a rate that is far too high it gets worse: training ends early, and a whole model of its best step is
    written, which gives the loss that was measured."""
    import torch
    from transformers import AutoModelForCausalLM

    parameters = {"model": llama, **QUICK, "method": "full", "learning_rate": 0.05, "schedule": "constant"}
    parameters |= {"epochs": 60, "evaluate_every": 1, "patience": 3}
    course = Course(tmp_path, sums, parameters).run()
    summary = course.summary()
    assert summary["best_step"] == summary["last_step"] - 3
    assert summary["ended_early"] == "3 evaluations in a row brought nothing better"
    model = AutoModelForCausalLM.from_pretrained(course.output).eval()
    assert (course.output / "model.safetensors").is_file()
    total = counted = 0.0
    for row in SUMS[12:]:
        text = logits(model, row["prompt"] + row["completion"])[0]
        from tests.training import tiny

        ids = tiny.byte_tokenizer()(row["prompt"] + row["completion"] + "</s>")["input_ids"]
        answer = len(ids) - len(row["completion"]) - 1
        losses = torch.nn.functional.cross_entropy(text[answer - 1 :], torch.tensor(ids[answer:]), reduction="sum")
        total, counted = total + float(losses), counted + len(ids) - answer
    assert total / counted == pytest.approx(summary["metrics"]["eval_loss"], rel=1e-4)


def test_a_classifier_ends_at_its_target(tmp_path: Path) -> None:
    """It stops at the evaluation that reaches it, and PEFT puts the adapter and its head on the base again."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    from tests.training import tiny

    base = tiny.bert(tmp_path / "bert")
    rows = tiny.write_rows(tmp_path / "votes", "labelled", [*VOTES[:6], *VOTES[8:14]], VOTES[14:], ("against", "for"))
    parameters = {"model": base, "task": "classification", **QUICK, "learning_rate": 0.02, "epochs": 100}
    course = Course(tmp_path / "run", rows, {**parameters, "target": {"eval_accuracy": 1.0}}).run()
    summary = course.summary()
    assert summary["ended_early"] == "the target is reached: eval_accuracy is 1, wanted was 1"
    assert summary["labels"] == ["against", "for"]
    assert max(course.points()) == summary["last_step"] < 200
    loaded = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base), course.output)
    assert [int(logits(loaded, row["text"]).argmax()) for row in VOTES[14:]] == [0, 0]


def test_weights_of_16_bits_lose_most_steps_of_a_full_fine_tuning(llama: str, sums: Path, tmp_path: Path) -> None:
    """Which is why it is refused: at the usual rate of a full fine-tuning few of them move at all."""
    from safetensors.torch import load_file

    moved = {}
    before = load_file(Path(llama) / "model.safetensors")
    for precision in ("bf16", "autocast"):
        parameters = {"model": llama, **QUICK, "method": "full", "learning_rate": 2e-5, "precision": precision}
        course = Course(tmp_path / precision, sums, parameters).run()
        after = load_file(course.output / "model.safetensors")
        changed = sum(
            int((after[name].float() != one.to(after[name].dtype).float()).sum()) for name, one in before.items()
        )
        moved[precision] = changed / sum(one.numel() for one in before.values())
    assert moved["bf16"] < moved["autocast"] / 2


def test_a_mixture_of_experts_is_refused_before_its_weights_are_read(sums: Path, tmp_path: Path) -> None:
    """Also one of the hub whose name does not tell."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"model_type": "mixtral", "num_local_experts": 4}')
    with pytest.raises(InvalidInput, match="is a mixture of experts"):
        Course(tmp_path / "run", sums, {"model": str(tmp_path / "base"), **QUICK}).run()


def test_how_a_batch_is_cut_does_not_matter(llama: str, sums: Path, tmp_path: Path) -> None:
    """Losses are over all answers of a step: micro-batches of one row, or all rows at once, learn the same."""
    parameters = {"model": llama, **QUICK, "epochs": 2, "lora_dropout": 0.0}
    one, all_ = (
        Course(tmp_path / str(size), sums, {**parameters, "micro_batch": size, "checkpointing": size == 1})
        .run()
        .points()
        for size in (1, 8)
    )
    for step, values in one.items():
        assert values == {name: pytest.approx(value, rel=1e-3) for name, value in all_[step].items()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 1e30, "clip_norm": 1e30}, r"the loss of step \d+ is (nan|inf): try a lower learning_rate"),
        ({"method": "qlora", "precision": "bf16"}, "method: 'qlora' keeps weights in 4 bits, and this machine has no"),
        ({"sequence_length": 2}, "no training row has an answer within the first 2 tokens"),
        ({"lora_targets": ["no_such_matrix"]}, "no_such_matrix"),
        ({"batch_size": 0}, "batch_size: 0 is less than 1"),
    ],
    ids=["diverged", "no 4 bits", "too short", "no such matrix", "bad setting"],
)
def test_what_cannot_be_trained_ends_with_one_line_that_says_why(
    llama: str, sums: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    """No traceback of ours: the job's last line is the reason."""
    import torch

    if torch.cuda.is_available() and settings.get("method") == "qlora":
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit, match=message) as left:
        Course(tmp_path, sums, {"model": llama, **QUICK, **settings}).run(by_hand=False)
    assert str(left.value.code).startswith("error: ")


def test_base_weights_that_were_loaded_ahead_change_nothing(llama: str, sums: Path, tmp_path: Path, capfd: Any) -> None:
    """A job that finds them trains as one that reads them itself; they serve once, and only if they are still those."""
    from tests.training.scripts import files_of
    from workers.trainer import base

    parameters = {"model": llama, **QUICK, "lora_dropout": 0.2}
    cold = Course(tmp_path / "cold", sums, parameters).run()
    assert "loaded ahead" not in capfd.readouterr().out
    base.load_ahead(parameters)
    ahead = Course(tmp_path / "ahead", sums, parameters).run()
    assert "base weights were loaded ahead" in capfd.readouterr().out
    assert (ahead.points(), files_of(ahead.output)) == (cold.points(), files_of(cold.output))
    assert not base._kept
    base.load_ahead(parameters)
    (Path(llama) / "config.json").touch()
    Course(tmp_path / "changed", sums, parameters).run()
    assert "loaded ahead" not in capfd.readouterr().out


def test_a_profile_is_told_and_nothing_else_is_left(llama: str, sums: Path, tmp_path: Path) -> None:
    """It is the same whatever the job's own adapter and seed are, and the server takes it."""
    from allpass.wire.agent import ProfileFound
    from workers.agent.metric_lines import parse

    told = []
    for number, own in enumerate(({"lora_rank": 2}, {"lora_dropout": 0.5, "seed": 5, "method": "full"})):
        place = tmp_path / str(number)
        parameters = {"model": llama, **QUICK, **own}
        course = Course(place, sums, parameters, environ={"ALLPASS_PURPOSE": "profile"}).run()
        assert not course.output.exists()
        assert not (course.parts[-1] / "checkpoints").exists()
        (line,) = (course.parts[-1] / "metrics.jsonl").read_bytes().splitlines()
        told.append(ProfileFound.model_validate(parse(line, 0).profile))
    assert told[0] == told[1]
    assert told[0].rows == 12


def test_a_profile_looks_at_a_bounded_number_of_rows() -> None:
    """Of however many there are, the same ones each time, and nothing that is held out."""
    from workers.trainer import fisher
    from workers.trainer.rows import Data

    rows = tuple({"text": str(number)} for number in range(5000))
    one, again = (fisher.bounded(Data("text", (), rows, rows)) for _ in range(2))
    assert one == again
    assert len(one.train) == 4 * fisher.ROWS
    assert one.held_out == ()


def test_a_profile_that_is_asked_to_stop_leaves_at_once(llama: str, sums: Path, tmp_path: Path) -> None:
    """With the code that says so, and without telling anything."""
    from allpass.training.session import EXIT_STOPPED
    from tests.training.pairs import environment, exactly
    from workers.trainer import main

    session = Session(environment(tmp_path, "run"))
    session.request_stop()
    with exactly(), pytest.raises(SystemExit) as leaving:
        main.profile(sums, Recipe.of({"model": llama, **QUICK}), session)
    assert leaving.value.code == EXIT_STOPPED
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
