"""A job that looks at its task before it trains: what it tells, and that its training knows nothing of it."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from allpass.wire.agent import ProfileFound
from tests.training.recipes import Course, StopsAt
from tests.training.scripts import files_of

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(16)]
VOTES = [{"text": f"{word} {number}", "label": label} for label, word in (("for", "aye"), ("against", "no"))
         for number in range(6)]  # fmt: skip
QUICK: dict[str, Any] = {"steps": 4, "evaluate_every": 2, "batch_size": 4, "learning_rate": 5e-3, "precision": "fp32"}
FIRST = {"ALLPASS_PROFILES": "1"}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """By task: its rows, and a base model."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("bases")
    return {
        "sft": (tiny.write_rows(folder / "sums", "prompt", SUMS[:12], SUMS[12:]), tiny.llama(folder / "llama")),
        "classification": (
            tiny.write_rows(folder / "votes", "labelled", VOTES, VOTES[:4], ("for", "against")),
            tiny.bert(folder / "bert"),
        ),
    }


def profiles(course: Course) -> list[tuple[int, ProfileFound]]:
    """What was told, and as which line."""
    told = [line.get("training", {}).get("profile") for line in course.lines()]
    return [(number, ProfileFound.model_validate(one)) for number, one in enumerate(told) if one is not None]


def results(course: Course) -> Any:
    """All that a training leaves: its metrics, checkpoints and output."""
    return course.points(), [files_of(part / "checkpoints") for part in course.parts], files_of(course.output)


@pytest.mark.parametrize(
    ("task", "own"),
    [
        ("sft", {"lora_dropout": 0.3, "lora_rank": 4, "seed": 3}),
        ("sft", {"method": "full"}),
        ("sft", {"method": "full", "precision": None}),
        ("sft", {"checkpointing": True, "threads": 2, "lora_dropout": 0.3}),
        ("classification", {"lora_dropout": 0.3}),
    ],
    ids=["adapter", "full", "full in another precision", "checkpointing", "classifier"],
)
def test_a_training_that_looks_first_is_the_same_bit_for_bit(
    bases: Any, tmp_path: Path, task: str, own: dict[str, Any]
) -> None:
    """Also across a stop: the profile is that of a profile run, told before all else, and once."""
    from workers.trainer import base

    rows, model = bases[task]
    parameters = {"model": model, "task": task, **QUICK, **own}
    alone = Course(tmp_path / "alone", rows, parameters).run([3])
    looks = Course(tmp_path / "looks", rows, parameters, environ=FIRST).run([3])
    assert results(looks) == results(alone)
    run = Course(tmp_path / "profile", rows, parameters, environ={"ALLPASS_PURPOSE": "profile"}).run()
    assert profiles(looks) == profiles(run)
    assert [number for number, _ in profiles(looks)] == [0]
    assert not base._kept


def test_base_weights_are_read_once(bases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked through is trained on; not where the training wants them in another precision."""
    from workers.trainer import base

    rows, model = bases["sft"]
    reads: list[str] = []
    read = base._read
    monkeypatch.setattr(base, "_read", lambda recipe: reads.append(recipe.numbers) or read(recipe))
    Course(tmp_path / "same", rows, {"model": model, **QUICK}, environ=FIRST).run()
    assert reads == ["fp32"]
    other = {"model": model, **QUICK, "method": "full", "precision": None}
    Course(tmp_path / "other", rows, other, environ=FIRST).run()
    assert reads == ["fp32", "bf16", "autocast"]


@pytest.mark.parametrize("fails", [False, True], ids=["found", "failed"])
def test_nothing_of_a_look_is_left_when_memory_is_freed_for_training(
    bases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A model that is not trained on would be a second one beside the one that is."""
    from workers.trainer import fisher, loop, model

    rows, base = bases["classification"]
    looked: list[weakref.ref[Any]] = []
    alive: list[bool] = []
    prepare, free = model.prepare, model.free_memory

    def noted(*given: Any) -> model.Prepared:
        prepared = prepare(*given)
        looked.append(weakref.ref(prepared.model))
        return prepared

    monkeypatch.setattr(model, "prepare", noted)
    monkeypatch.setattr(model, "free_memory", lambda: (free(), alive.extend(one() is not None for one in looked)))
    monkeypatch.setattr(loop, "train", lambda *given: None)
    if fails:
        monkeypatch.setattr(fisher, "_gradients", lambda *given: 1 / 0)
    course = Course(tmp_path, rows, {"model": base, "task": "classification", **QUICK}, environ=FIRST).run()
    assert alive == [False]
    assert bool((course.parts[-1] / "metrics.jsonl").exists()) != fails


def test_a_model_that_adapts_to_what_it_has_read_is_read_again(tmp_path: Path) -> None:
    """Its positions stretch with the longest row so far: it must not have seen that one before the training does."""
    from tests.training import tiny

    model = tiny.llama(tmp_path / "llama")
    config = tmp_path / "llama" / "config.json"
    stretching = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "rope_parameters": stretching, "max_position_embeddings": 4})
    )
    rows = tiny.write_rows(tmp_path / "rows", "prompt", [*SUMS[:12], {"prompt": "9" * 50, "completion": "1"}])
    parameters = {"model": model, **QUICK}
    alone = Course(tmp_path / "alone", rows, parameters).run()
    assert results(Course(tmp_path / "looks", rows, parameters, environ=FIRST).run()) == results(alone)


def test_a_look_that_fails_costs_nothing_but_itself(
    bases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the middle of it or at its end, or because it takes too long: one line says so, and the training is the
    same."""
    from workers.trainer import fisher, main

    rows, model = bases["sft"]
    parameters = {"model": model, **QUICK, "lora_dropout": 0.3}
    alone = Course(tmp_path / "alone", rows, parameters).run()

    def course(name: str) -> Course:
        capfd.readouterr()
        ran = Course(tmp_path / name, rows, parameters, environ=FIRST).run()
        assert results(ran) == results(alone)
        assert profiles(ran) == []
        assert capfd.readouterr().out.count("training: without a profile of its task: ") == 1
        return ran

    with monkeypatch.context() as broken:
        broken.setattr(main, "MOST_LOOK_S", -1.0)
        course("long")
    with monkeypatch.context() as broken:
        broken.setattr(fisher, "_sketch", lambda sums: (float("nan"),))
        course("no number")
    with monkeypatch.context() as broken:
        broken.setattr(fisher, "_gradients", lambda *given: 1 / 0)
        course("broken")


def test_a_job_that_is_to_stop_looks_no_further(bases: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It takes its first step and leaves with that, as any job."""
    rows, model = bases["sft"]

    class StopsAtOnce(StopsAt):
        """It is asked before it looks."""

        def parameters(self, **defaults: Any) -> dict[str, Any]:
            if "ALLPASS_RESUME_DIR" not in self._environment:
                self.request_stop()
            return super().parameters(**defaults)

    course = Course(tmp_path, rows, {"model": model, **QUICK}, environ=FIRST, session=StopsAtOnce).run([1])
    assert profiles(course) == []
    assert "without a profile of its task: the job is to stop" in capfd.readouterr().out
    assert course.summary()["last_step"] == 4
