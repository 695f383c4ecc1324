"""Two jobs in one process under an agent: exact across stops, and what happens to one is not the other's."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.training.pairs import PairCourse
from tests.training.recipes import Course
from tests.training.scripts import files_of
from tests.training.test_pairs import CAUSAL, COMMON, LABELS, SIZES, SUMS, TURNED, VOTES
from tests.training.togethers import JOBS, TogetherCourse

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
LEAD, COMPANION = JOBS
STEPS = 9  # of the run


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By kind of task: the data of both jobs, and their parameters."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("together")
    causal = {"model": tiny.llama(folder / "llama"), **COMMON}
    labelled = {"model": tiny.bert(folder / "bert"), "task": "classification", **COMMON}
    sums = tiny.write_rows(folder / "sums", "prompt", SUMS[:14], SUMS[14:])
    turned = tiny.write_rows(folder / "turned", "prompt", TURNED[:22], TURNED[22:])
    votes = tiny.write_rows(folder / "votes", "labelled", VOTES[::2], VOTES[1::2], ("no", "yes"))
    sizes = tiny.write_rows(folder / "sizes", "labelled", SIZES[::2], SIZES[1::2], ("few", "many", "more"))
    return {
        "causal": ((sums, turned), ({**causal, **CAUSAL[0]}, {**causal, **CAUSAL[1]})),
        "labelled": ((votes, sizes), ({**labelled, **LABELS[0]}, {**labelled, **LABELS[1]})),
    }


def course(kinds: dict[str, Any], folder: Path, kind: str = "causal", **more: Any) -> TogetherCourse:
    data, (first, second) = kinds[kind]
    changes = [more.pop(name, {}) for name in ("lead", "companion")]
    return TogetherCourse(folder, data, ({**first, **changes[0]}, {**second, **changes[1]}), **more)


@pytest.fixture(scope="module")
def whole(kinds: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> TogetherCourse:
    """Both, left alone."""
    return course(kinds, tmp_path_factory.mktemp("whole")).run()


def alone(kinds: dict[str, Any], folder: Path, number: int, begin: Path | None = None, **more: Any) -> Course:
    """One of the two by itself, from a checkpoint that it has."""
    data, parameters = kinds["causal"]
    environ = {"ALLPASS_JOB_ID": JOBS[number]}
    if begin is not None:
        environ |= {"ALLPASS_RESUME_DIR": str(begin), "ALLPASS_RESUME_STEP": begin.name.rpartition("-")[2]}
    return Course(folder, data[number], {**parameters[number], **more}, environ=environ).run()


def weights(output: Path) -> bytes:
    return (output / "adapter_model.safetensors").read_bytes()


def assert_same(one: TogetherCourse, other: TogetherCourse) -> None:
    for job in JOBS:
        assert one.points(job) == other.points(job)
        assert files_of(one.output(job)) == files_of(other.output(job))


def test_each_ends_by_itself_with_what_the_pair_has_learned(
    kinds: dict[str, Any], whole: TogetherCourse, tmp_path: Path
) -> None:
    """Metrics, outputs, ends and logs are each job's own, and those of two jobs in one training."""
    data, parameters = kinds["causal"]
    pair = PairCourse(tmp_path, "joint", data, parameters).run()
    for job, name in zip(JOBS, ("one", "other"), strict=True):
        assert whole.points(job) == pair.points(name)
        assert files_of(whole.output(job)) == files_of(pair.output(name))
        assert whole.end(job) == {"exit_code": 0, "why": "its last step is taken"}
    said = whole.log(COMPANION)
    assert said.count("eval_loss") == 2
    assert "training: ended at step 4" in said


def test_stopped_after_every_step_in_turn_they_end_as_if_left_alone(
    kinds: dict[str, Any], whole: TogetherCourse, tmp_path: Path
) -> None:
    """Each step of the run in a fresh process, from whichever of the two checkpoints is newer."""
    assert_same(course(kinds, tmp_path).run([1] * (STEPS - 1)), whole)


@pytest.mark.parametrize("stops", [(4,), (2, 2)])
def test_stopped_now_and_then_classifiers_keep_their_heads(
    kinds: dict[str, Any], stops: tuple[int, ...], tmp_path: Path
) -> None:
    """Two and three labels, each with a head of its own, across stops."""
    parts = course(kinds, tmp_path / "parts", "labelled").run(stops)
    assert_same(parts, course(kinds, tmp_path / "whole", "labelled").run())


def test_who_is_told_to_leave_saves_and_leaves_and_the_other_goes_on(kinds: dict[str, Any], tmp_path: Path) -> None:
    """The lead leaves in its third step: the other ends exactly as in any pair whose first was dropped there."""
    run = course(kinds, tmp_path / "run", leave_at={LEAD: 3}).run()
    assert run.end(LEAD) == {"exit_code": 75, "why": "asked to leave"}
    assert len(run.points(LEAD)) == 3
    data, parameters = kinds["causal"]

    def change(pair: Any) -> None:
        pair.first.session.on_step = lambda: pair.drop("one") if pair.first.step == 3 else None

    pair = PairCourse(tmp_path / "pair", "joint", data, parameters, change=change).run()
    assert run.points(COMPANION) == pair.points("other")
    assert files_of(run.output(COMPANION)) == files_of(pair.output("other"))
    left = run.newest(LEAD)
    assert left is not None
    assert max(alone(kinds, tmp_path / "alone", 0, left).points()) == 5


def test_who_meets_the_pairs_checkpoint_alone_goes_on_from_its_best_state(
    kinds: dict[str, Any], tmp_path: Path
) -> None:
    """As the checkpoint of its own would have it that it leaves with when it is taken out of the pair."""
    stopped = course(kinds, tmp_path / "stopped").until(6)
    left = course(kinds, tmp_path / "left", leave_at={LEAD: 3}).run()
    met, own = stopped.newest(LEAD), left.newest(LEAD)
    assert met is not None
    assert own is not None
    assert (met / "pair.json").exists()
    assert not (own / "pair.json").exists()
    one, other = alone(kinds, tmp_path / "met", 0, met), alone(kinds, tmp_path / "own", 0, own)
    assert weights(one.output) == weights(other.output)
    assert sorted(one.points()) == sorted(other.points()) == [3, 4, 5]


def test_a_loss_that_is_no_number_parts_the_two(kinds: dict[str, Any], tmp_path: Path) -> None:
    """Both are told to go on by themselves, and neither hears of the other's numbers."""
    rate = {"learning_rate": 1e30, "schedule": "constant", "clip_norm": 1e30}
    run = course(kinds, tmp_path, lead=rate, companion=rate).run()
    ends = {job: run.end(job) or {} for job in JOBS}
    assert {end["exit_code"] for end in ends.values()} == {75}
    (sick,) = (job for job in JOBS if "the loss of" in ends[job]["parted"])
    (other,) = (job for job in JOBS if job != sick)
    assert sick in ends[sick]["parted"]
    assert ends[other]["parted"] == "the two did not help each other"


def test_a_job_that_cannot_be_trained_fails_alone(kinds: dict[str, Any], tmp_path: Path) -> None:
    """Its rows have no answer within the length: it ends with the reason, and the other as if it had never been."""
    from tests.training import tiny

    data, parameters = kinds["causal"]
    far = [{"prompt": "x" * 2000, "completion": "y"}] * 8
    rows = tiny.write_rows(tmp_path / "far", "prompt", far[:6], far[6:])
    run = TogetherCourse(tmp_path / "run", (data[0], rows), parameters).run()
    end = run.end(COMPANION) or {}
    assert end["exit_code"] == 1
    assert "choose a larger sequence_length" in end["why"]
    assert "choose a larger sequence_length" in run.log(COMPANION)
    assert run.end(LEAD) == {"exit_code": 0, "why": "it is trained"}
    assert files_of(run.output(LEAD)) == files_of(alone(kinds, tmp_path / "alone", 0).output)


def test_jobs_that_differ_in_what_is_shared_are_parted(kinds: dict[str, Any], tmp_path: Path) -> None:
    """No step is taken, and the reason names the setting."""
    run = course(kinds, tmp_path, companion={"learning_rate": 0.001}).run()
    for job in JOBS:
        assert "cannot be trained as one: rate is 0.005 for one and 0.001" in (run.end(job) or {})["parted"]
        assert run.points(job) == {}


def test_a_job_that_has_trained_by_itself_is_parted_from_its_other(kinds: dict[str, Any], tmp_path: Path) -> None:
    """They have no state in common: each goes on from its own."""
    own = alone(kinds, tmp_path / "alone", 0).last_checkpoint
    run = course(kinds, tmp_path / "run").run(begin={LEAD: own})
    for job in JOBS:
        assert (run.end(job) or {})["parted"] == "one of the two has trained without the other since it began"


def test_what_goes_wrong_while_both_are_in_parts_them(kinds: dict[str, Any], tmp_path: Path) -> None:
    """It may be either's doing: each tries by itself, where only one will fail."""
    run = course(kinds, tmp_path)
    broken = tmp_path / "part0" / COMPANION / "metrics.jsonl"
    broken.mkdir(parents=True)  # it cannot report
    run.run()
    for job in JOBS:
        assert (run.end(job) or {})["parted"].startswith("training together failed: IsADirectoryError")


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(
    kinds: dict[str, Any], whole: TogetherCourse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both leave without one when they are asked to, and begin anew."""
    from workers.trainer import keeping

    def save_tree(folder: Path, tree: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as full:
        full.setattr(keeping, "save_tree", save_tree)
        run = course(kinds, tmp_path).until(4)
    assert [run.newest(job) for job in JOBS] == [None, None]
    assert_same(run.run(), whole)
