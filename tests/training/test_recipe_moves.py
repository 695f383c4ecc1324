"""The built-in recipe, stopped anywhere, ends as if nothing had been: losses, evaluations and files, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.training.recipes import Course
from tests.training.scripts import files_of

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [
    {"prompt": f"{first}+{second}=", "completion": str(first + second)} for first in range(5) for second in range(5)
]
PAIRS = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no idea"} for row in SUMS]
VOTES = [
    {"text": f"{word} {number}", "label": label}
    for label, words in (("for", ("aye", "yes")), ("against", ("no", "nay")))
    for word in words
    for number in range(5)
]
COMMON: dict[str, Any] = {"batch_size": 6, "micro_batch": 2, "learning_rate": 5e-3, "evaluate_every": 3, "seed": 7}
# (model, rows, parameters): adapters on joined rows under dropout, a whole model with a cosine, pairs of answers, a
# classifier with a loss scaler.
KINDS: dict[str, Any] = {
    "lora": ("llama", {"epochs": 2.5, "edition": 2, "lora_dropout": 0.3, "precision": "fp32", "schedule": "cosine"}),
    "full": ("llama", {"steps": 9, "method": "full", "precision": "autocast", "weight_decay": 0.1, "warmup": 0.3}),
    "pairs": ("pairs", {"steps": 7, "task": "dpo", "edition": 2, "lora_dropout": 0.0, "precision": "fp32"}),
    "classifier": ("bert", {"steps": 8, "task": "classification", "precision": "fp16", "clip_norm": 0.1}),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path]]:
    """By kind of model: its name, and the rows for it."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("bases")
    return {
        "llama": (tiny.llama(folder / "llama"), tiny.write_rows(folder / "sums", "prompt", SUMS[:20], SUMS[20:])),
        "pairs": (
            tiny.llama(folder / "llama of pairs"),
            tiny.write_rows(folder / "pairs", "pair", PAIRS[:20], PAIRS[20:]),
        ),
        "bert": (
            tiny.bert(folder / "bert"),
            tiny.write_rows(folder / "votes", "labelled", VOTES[:16], VOTES[16:], ("against", "for")),
        ),
    }


@pytest.fixture(scope="module")
def wholes(bases: dict[str, tuple[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Course]:
    """Each kind, left alone."""
    found = {}
    for kind, (base, parameters) in KINDS.items():
        model, rows = bases[base]
        found[kind] = Course(tmp_path_factory.mktemp(kind), rows, {"model": model, **COMMON, **parameters}).run()
    return found


def assert_same(moved: Course, whole: Course) -> None:
    assert moved.points() == whole.points()
    assert files_of(moved.output) == files_of(whole.output)


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_at_every_step_in_turn_it_ends_as_if_left_alone(
    wholes: dict[str, Course], kind: str, tmp_path: Path
) -> None:
    """Each step on another machine: an evaluation that a stop put off is made by the next one."""
    whole = wholes[kind]
    last_step = max(whole.points())
    moved = Course(tmp_path, whole.data, whole.parameters).run(range(1, last_step + 1))
    assert_same(moved, whole)
    evaluated = [step for step, values in moved.points().items() if "eval_loss" in values]
    assert evaluated == sorted({*range(3, last_step, 3), last_step})


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_at_a_few_steps_it_ends_as_if_left_alone(wholes: dict[str, Course], kind: str, tmp_path: Path) -> None:
    """Stops at chance's choice, the same in every run of this test."""
    whole = wholes[kind]
    chance = random.Random(kind)
    steps = range(1, max(whole.points()))
    stops = sorted(chance.sample(steps, 3))
    assert_same(Course(tmp_path, whole.data, whole.parameters).run(stops), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_step_is_saved_with_what_was_best(wholes: dict[str, Course], kind: str, tmp_path: Path) -> None:
    """Whoever begins with it finds the weights that were exported, also where a stop had put off the last look."""
    from allpass.training.torch_state import load_tree

    whole = wholes[kind]
    last_step = max(whole.points())
    moved = Course(tmp_path, whole.data, whole.parameters).run([last_step])
    for course in (whole, moved):
        assert course.last_checkpoint.name == f"step-{last_step:08d}"
    one, other = (load_tree(course.last_checkpoint)["data"] for course in (whole, moved))
    assert one["progress"] == other["progress"]
    assert one["progress"]["evaluated_step"] == last_step
    assert one["best"].keys() == other["best"].keys() != set()
    assert all((one["best"][name] == other["best"][name]).all() for name in one["best"])


@pytest.mark.parametrize(("kind", "labels"), [("lora", ()), ("classifier", ("against", "for", "none"))])
def test_from_what_another_learned_it_ends_the_same_however_it_is_stopped(
    wholes: dict[str, Course], kind: str, labels: tuple[str, ...], tmp_path: Path
) -> None:
    """Its first step is 1 and begins where the other was best, under a head of its own where labels differ."""
    from allpass.training.torch_state import load_tree
    from tests.training import tiny

    lead = wholes[kind]
    rows = [dict(row, label=labels[number % 3]) for number, row in enumerate(VOTES)] if labels else SUMS
    data = tiny.write_rows(tmp_path / "rows", "labelled" if labels else "prompt", rows[::2], rows[1::2], labels)
    parameters = {**lead.parameters, "steps": 5, "evaluate_every": 2, "seed": 11}
    whole, moved = (Course(tmp_path / name, data, parameters, lead.last_checkpoint) for name in ("whole", "moved"))
    assert_same(moved.run([1, 3, 5]), whole.run())
    assert sorted(whole.points()) == [1, 2, 3, 4, 5]
    first_tokens, last_tokens = whole.points()[1]["tokens"], whole.summary()["tokens"]
    assert 0 < first_tokens < last_tokens == whole.points()[5]["tokens"]
    anew = Course(tmp_path / "anew", data, parameters).run()
    assert anew.points()[1]["loss"] != whole.points()[1]["loss"], "it does not begin with the base model"
    heads = {one.shape[0] for name, one in load_tree(whole.last_checkpoint)["weights"].items() if "classifier" in name}
    assert heads == ({3} if labels else set())
