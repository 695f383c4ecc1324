"""Two jobs trained as one: exact at every stop, each with what is its own, and apart again without harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.pairs import PairCourse, poisoned
from tests.training.scripts import files_of

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [{"prompt": f"{one}+{two}=", "completion": str(one + two)} for one in range(4) for two in range(5)]
TURNED = [{"prompt": f"{one}{two}<", "completion": f"{two}{one}"} for one in range(4) for two in range(7)]
VOTES = [{"text": f"{word} {n}", "label": label} for label, word in (("no", "nay"), ("yes", "aye")) for n in range(8)]
SIZES = [{"text": "x" * n, "label": "few" if n < 6 else "more" if n < 11 else "many"} for n in range(1, 17)]
COMMON: dict[str, Any] = {
    "batch_size": 6, "micro_batch": 3, "learning_rate": 5e-3, "precision": "fp32", "lora_rank": 4, "seed": 3,
    "lora_dropout": 0.2, "checkpointing": False,
}  # fmt: skip
CAUSAL = ({"steps": 5, "evaluate_every": 2}, {"steps": 4, "evaluate_every": 3, "seed": 4})
LABELS = ({"steps": 3, "evaluate_every": 1}, {"steps": 3, "evaluate_every": 1})
RUNS = {"joint": 9, "in_turn": 5}  # steps of the run that holds both: in turn, those of the first


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By kind of task: the data of both jobs, and their parameters."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("pairs")
    llama, bert = tiny.llama(folder / "llama"), tiny.bert(folder / "bert")
    causal = {"model": llama, **COMMON}
    labelled = {"model": bert, "task": "classification", **COMMON}
    return {
        "causal": (
            (
                tiny.write_rows(folder / "sums", "prompt", SUMS[:14], SUMS[14:]),
                tiny.write_rows(folder / "turned", "prompt", TURNED[:22], TURNED[22:]),
            ),
            ({**causal, **CAUSAL[0]}, {**causal, **CAUSAL[1]}),
        ),
        "labelled": (
            (
                tiny.write_rows(folder / "votes", "labelled", VOTES[::2], VOTES[1::2], ("no", "yes")),
                tiny.write_rows(folder / "sizes", "labelled", SIZES[::2], SIZES[1::2], ("few", "many", "more")),
            ),
            ({**labelled, **LABELS[0]}, {**labelled, **LABELS[1]}),
        ),
    }


def course(kinds: dict[str, Any], folder: Path, mode: str, kind: str = "causal", **more: Any) -> PairCourse:
    data, (first, second) = kinds[kind]
    changes = [more.pop(name, {}) for name in ("first", "second")]
    return PairCourse(folder, mode, data, ({**first, **changes[0]}, {**second, **changes[1]}), **more)


@pytest.fixture(scope="module")
def wholes(kinds: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, PairCourse]:
    """Both modes, left alone."""
    return {mode: course(kinds, tmp_path_factory.mktemp(mode), mode).run() for mode in RUNS}


@pytest.mark.parametrize("mode", list(RUNS))
def test_a_pair_stopped_at_every_step_ends_with_the_same_bits(
    mode: str, kinds: dict[str, Any], wholes: dict[str, PairCourse], tmp_path: Path
) -> None:
    """Stopped at each step in turn and resumed in a fresh model, both sides report and leave what they would have."""
    stops = range(1, RUNS[mode])  # a stop in the last step finds nothing left to do
    parts = course(kinds, tmp_path, mode).run(stops)
    for name in ("one", "other"):
        assert parts.points(name) == wholes[mode].points(name)
        assert files_of(parts.output(name)) == files_of(wholes[mode].output(name))


def test_heads_are_each_sides_own_and_the_backbone_is_shared(kinds: dict[str, Any], tmp_path: Path) -> None:
    """Two classifiers with two and three labels end, stopped or not, with adapters that PEFT loads under such heads."""
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForSequenceClassification

    whole = course(kinds, tmp_path / "whole", "joint", "labelled").run()
    parts = course(kinds, tmp_path / "parts", "joint", "labelled").run([2, 5])
    for name, labels in (("one", 2), ("other", 3)):
        assert files_of(parts.output(name)) == files_of(whole.output(name))
        assert len(whole.points(name)) == 3
        weights = load_file(whole.output(name) / "adapter_model.safetensors")
        assert {one.shape[0] for key, one in weights.items() if "classifier" in key} == {labels}
        base = AutoModelForSequenceClassification.from_pretrained(
            kinds["labelled"][1][0]["model"], num_labels=labels, ignore_mismatched_sizes=True
        )
        assert PeftModel.from_pretrained(base, whole.output(name)).classifier is not None


def test_a_second_with_other_labels_keeps_the_backbone_and_draws_its_head_anew(
    kinds: dict[str, Any], tmp_path: Path
) -> None:
    """In turn, what the first learned of the text is where the second starts; of labels it knows nothing."""
    from allpass.training.torch_state import load_tree

    run = course(kinds, tmp_path, "in_turn", "labelled").run()
    begun = load_tree(run.parts[0] / "other" / "checkpoints" / "step-00000000")
    assert run.sides is not None
    learned = run.sides[0].state()["best"]
    assert {one.shape[0] for key, one in begun["weights"].items() if "classifier" in key} == {3}
    adapters = [key for key in learned if "lora" in key]
    assert adapters
    assert all((begun["weights"][key] == learned[key]).all() for key in adapters)


def test_each_side_has_its_own_steps_metrics_and_tokens(wholes: dict[str, PairCourse]) -> None:
    """Side by side, each takes its own number of steps, evaluates when it said, and pays for the tokens it read."""
    run = wholes["joint"]
    one, other = run.points("one"), run.points("other")
    assert (list(one), list(other)) == ([1, 2, 3, 4, 5], [1, 2, 3, 4])
    assert [step for step in one if "eval_loss" in one[step]] == [2, 4, 5]
    assert [step for step in other if "eval_loss" in other[step]] == [3, 4]
    assert run.sides is not None
    for name, side in zip(("one", "other"), run.sides, strict=True):
        read = sum(len(row.ids) for step in range(1, side.step + 1) for row in side.task.stream.rows(step))
        assert run.summary(name)["tokens"] == side.tokens == read


def test_a_side_at_its_target_leaves_and_the_other_goes_on(kinds: dict[str, Any], tmp_path: Path) -> None:
    """One is through at its first evaluation: the other still takes all of its steps."""
    run = course(kinds, tmp_path, "joint", first={"target": {"eval_loss": 100.0}}).run()
    assert run.summary("one")["ended_early"].startswith("the target is reached")
    assert len(run.points("one")) == 2
    assert len(run.points("other")) == run.summary("other")["last_step"] == 4
    assert run.why is None


@pytest.mark.parametrize("mode", list(RUNS))
def test_a_side_that_is_dropped_keeps_its_state_and_the_other_goes_on(
    mode: str, kinds: dict[str, Any], tmp_path: Path
) -> None:
    """One is cancelled, paused or moved in its third step: it can go on elsewhere, the other takes all its steps."""

    def change(pair: Any) -> None:
        pair.first.session.on_step = lambda: pair.drop("one") if pair.first.step == 3 else None

    run = course(kinds, tmp_path / "pair", mode, change=change).run()
    assert run.why is None
    assert len(run.points("one")) == 3
    assert not (run.parts[-1] / "one" / "output" / "training.json").exists()
    kept = [path.name for path in (run.parts[-1] / "one" / "checkpoints").glob("step-*")]
    assert kept == ["step-00000002" if mode == "joint" else "step-00000003"]  # the best it had; all of it
    assert run.summary("other")["last_step"] == 4
    assert run.alone("one", tmp_path / "one")["last_step"] == 5


def test_the_second_starts_where_the_first_was_best(wholes: dict[str, PairCourse], tmp_path: Path) -> None:
    """The warm process and another machine, from the second's own first checkpoint, go on with the same bits."""
    run = wholes["in_turn"]
    summary = run.alone("other", tmp_path)
    assert summary == run.summary("other")
    assert files_of(tmp_path / "own" / "output") == files_of(run.output("other"))


@pytest.mark.parametrize("mode", list(RUNS))
def test_a_loss_that_is_no_number_parts_the_two(mode: str, kinds: dict[str, Any], tmp_path: Path) -> None:
    """The sick side's weights never reach the other: both go on by themselves, from the best state each had."""
    run = course(kinds, tmp_path, mode, change=lambda pair: poisoned(pair, "one", 3)).run()
    assert run.why == "the loss of one at its step 3 is nan"
    assert run.sides is not None
    for name, side in zip(("one", "other"), run.sides, strict=True):
        left = [path.name for path in (run.parts[-1] / name / "checkpoints").glob("step-*")]
        assert left == ([f"step-{side.progress.step:08d}"] if side.progress.step else [])
        summary = run.alone(name, tmp_path / name)
        assert summary["last_step"] == side.last_step


def test_what_does_not_help_is_split_after_two_epochs(kinds: dict[str, Any], tmp_path: Path) -> None:
    """The second's held-out loss stays above what it is said to have begun with: the first goes on exactly as it would
    have alone, and the second begins anew."""

    def change(pair: Any) -> None:
        pair._monitor.restore({"before": {"other": 1.0}, "improved": {"other": False}})

    run = course(kinds, tmp_path / "pair", "in_turn", first={"steps": 8}, change=change).run()
    assert run.why is not None
    assert run.why == "after 2 epochs the held-out loss of other was never below the 1 it began with"
    assert run.sides is not None
    assert run.sides[0].step == 6
    parted = run.alone("one", tmp_path / "parted")
    assert parted == run.alone("one", tmp_path / "never", anew=True)
    assert files_of(tmp_path / "parted" / "own" / "output") == files_of(tmp_path / "never" / "own" / "output")


def test_a_second_without_held_out_rows_is_not_watched(kinds: dict[str, Any], tmp_path: Path) -> None:
    """There is nothing to look at: the first's own evaluations go on, and the second leaves its last state."""
    from tests.training import tiny

    data, parameters = kinds["causal"]
    bare = tiny.write_rows(tmp_path / "bare", "prompt", TURNED[:22])
    run = PairCourse(tmp_path / "pair", "in_turn", (data[0], bare), parameters).run()
    assert [step for step, told in run.points("one").items() if "eval_loss" in told] == [2, 4, 5]
    assert not any("eval_loss" in told for told in run.points("other").values())
    assert run.summary("other")["best_step"] == 4


def test_jobs_that_differ_in_what_is_shared_are_refused(kinds: dict[str, Any], tmp_path: Path) -> None:
    """Another precision, length or rate cannot be merged, and the message says which."""
    with pytest.raises(ValueError, match=r"cannot be trained as one: rate is 0\.005 for one and 0\.001"):
        course(kinds, tmp_path, "joint", second={"learning_rate": 0.001}).run()
