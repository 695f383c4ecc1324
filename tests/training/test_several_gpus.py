"""The built-in recipe on several GPUs is the one on a single GPU, bit for bit: losses, checkpoints, files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from allpass.training.elastic import gang, wanted_gpus
from tests.training.forking import CLIENT
from tests.training.gangs import OnGpus
from tests.training.recipes import StopsAt
from tests.training.scripts import files_of
from workers.trainer import gathering

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [{"prompt": f"{number}+1=" + number * " and", "completion": str(number + 1)} for number in range(25)]
PAIRS = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no idea"} for row in SUMS]
VOTES = [{"text": f"{word} {number}", "label": label} for label, word in (("for", "aye"), ("against", "no"))
         for number in range(10)]  # fmt: skip
COMMON: dict[str, Any] = {
    "batch_size": 8, "micro_batch": 2, "learning_rate": 5e-3, "evaluate_every": 2, "seed": 7, "edition": 4,
}  # fmt: skip
# (model, rows, parameters). Of 20 rows a step has 8, 8 and 4: four parts, and two.
KINDS: dict[str, Any] = {
    "lora": ("llama", {"epochs": 2, "lora_dropout": 0.3, "precision": "fp32", "clip_norm": 0.3}),
    "padded": ("llama", {"steps": 3, "lora_dropout": 0.0, "precision": "fp32", "packing": False, "micro_batch": 3}),
    "full": ("llama", {"steps": 3, "method": "full", "precision": "autocast", "weight_decay": 0.1}),
    "pairs": ("pairs", {"steps": 3, "task": "dpo", "lora_dropout": 0.0, "precision": "fp32"}),
    "classifier": ("bert", {"steps": 3, "task": "classification", "precision": "fp16", "lora_dropout": 0.1}),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path]]:
    """By kind of model: its name, and the rows for it."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("bases")
    llama = tiny.llama(folder / "llama")
    return {
        "llama": (llama, tiny.write_rows(folder / "sums", "prompt", SUMS[:20], SUMS[20:])),
        "pairs": (llama, tiny.write_rows(folder / "pairs", "pair", PAIRS[:20], PAIRS[20:])),
        "bert": (
            tiny.bert(folder / "bert"),
            tiny.write_rows(folder / "votes", "labelled", VOTES[:16], VOTES[16:], ("against", "for")),
        ),
    }


@pytest.fixture(autouse=True)
def forked(followers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKS", followers)
    monkeypatch.setattr(gathering, "COMMAND", CLIENT)


def course(folder: Path, bases: dict[str, tuple[str, Path]], kind: str, *counts: int, **more: Any) -> OnGpus:
    base, parameters = KINDS[kind]
    model, rows = bases[base]
    return OnGpus(folder, rows, {"model": model, **COMMON, **parameters, **more}, counts=counts)


@pytest.fixture(scope="module")
def alone(bases: dict[str, tuple[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, OnGpus]:
    """Each kind on a single GPU."""
    return {kind: course(tmp_path_factory.mktemp(kind), bases, kind, 1).run() for kind in KINDS}


def assert_same(found: OnGpus, alone: OnGpus) -> None:
    assert found.points() == alone.points()
    assert files_of(found.output) == files_of(alone.output)
    assert files_of(found.last_checkpoint) == files_of(alone.last_checkpoint)


@pytest.mark.parametrize(
    ("kind", "count"),
    [("lora", 2), ("lora", 3), ("lora", 4), ("padded", 2), ("full", 2), ("pairs", 3), ("classifier", 3)],
)
def test_however_many_gpus_it_ends_the_same(
    alone: dict[str, OnGpus], bases: dict[str, tuple[str, Path]], kind: str, count: int, tmp_path: Path
) -> None:
    """Also where they do not share a step's parts evenly, or a step has fewer parts than there are GPUs."""
    found = course(tmp_path, bases, kind, count).run()
    assert_same(found, alone[kind])
    told = [line["training"] for line in found.lines() if "sharding" in line.get("training", {})]
    parts = -(-8 // found.parameters["micro_batch"])
    assert [(one["sharding"], one["accumulation"]) for one in told] == [("ddp", -(-parts // count))]


class Resized(StopsAt):
    """Is given other GPUs as steps are reported, and goes on when the processes for these have loaded."""

    given: ClassVar[dict[int, list[str]]]
    gangs: ClassVar[list[gang.Gang]]

    def report(self, step: int, **metrics: Any) -> None:
        super().report(step, **metrics)
        if step in self.given:
            file = Path(os.environ[wanted_gpus.FILE])
            file.with_suffix(".draft").write_text(json.dumps(self.given.pop(step)))
            file.with_suffix(".draft").replace(file)
            end_s = time.monotonic() + 60
            while not self.gangs[-1]._changes():
                assert time.monotonic() < end_s, "nothing is to change"
                time.sleep(0.01)


@pytest.mark.parametrize(
    ("kind", "count", "plan", "sizes"),
    [
        ("lora", 1, {1: "012", 3: "02"}, ["3 GPUs, after 1", "2 GPUs, after 3"]),
        ("lora", 3, {1: "0213", 3: "03"}, ["4 GPUs, after 3", "2 GPUs, after 4"]),
        ("full", 2, {1: "012"}, ["3 GPUs, after 2"]),
        ("pairs", 2, {1: "0"}, ["1 GPU, after 2"]),
        ("classifier", 1, {1: "01"}, ["2 GPUs, after 1"]),
    ],
)
def test_it_changes_its_gpus_while_it_runs(
    alone: dict[str, OnGpus],
    bases: dict[str, tuple[str, Path]],
    kind: str,
    count: int,
    plan: dict[int, str],
    sizes: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """More, fewer and others, between two steps: it ends the same."""
    began: list[gang.Gang] = []
    start = gang.Gang.start

    def noted(self: gang.Gang) -> None:
        began.append(self)
        start(self)

    monkeypatch.setattr(gang.Gang, "start", noted)
    monkeypatch.setenv(wanted_gpus.FILE, str(tmp_path / "gpus.json"))
    found = course(tmp_path / "job", bases, kind, count)
    given = {step: list(names) for step, names in plan.items()}
    found.session = type("Own", (Resized,), {"given": given, "gangs": began})
    found.run()
    assert_same(found, alone[kind])
    told = capsys.readouterr().out
    assert [line.rpartition(" on ")[2] for line in told.splitlines() if "goes on with step" in line] == sizes
    said = [line["training"]["gpus"] for line in found.lines() if "gpus" in line.get("training", {})]
    begins = [str(number) for number in range(count)]
    assert said[0] == {"used": begins, "leaving": [], "refused": []}
    assert all(one["used"] in (begins, *map(list, plan.values())) for one in said)
    assert not any(set(one["leaving"]) & set(one["used"]) for one in said)
    assert all(0 < one.get("pause_ms", 1) < 30_000 for one in said)
    (own,) = began
    assert own._ranks is not None and own._ranks.pause_s is not None, "what its last change took"


@pytest.mark.parametrize("kind", ["lora", "full", "classifier"])
def test_it_moves_between_numbers_of_gpus(
    alone: dict[str, OnGpus], bases: dict[str, tuple[str, Path]], kind: str, tmp_path: Path
) -> None:
    """Stopped before an evaluation and after, to more GPUs, to fewer, and to one."""
    moved = course(tmp_path, bases, kind, 2, 1, 3).run([1, 2])
    assert_same(moved, alone[kind])


def test_a_job_that_began_before_there_were_parts_goes_on_with_one_process(
    bases: dict[str, tuple[str, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is random in it is one stream: it ends as it would have."""
    whole = course(tmp_path / "whole", bases, "lora", 1, edition=3).run()
    moved = course(tmp_path / "moved", bases, "lora", 1, 2, edition=3).run([3])
    assert_same(moved, whole)
    assert "it began in edition 3, whose steps are one process's: it goes on so, on the first of 2 GPUs" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("counts", "micro_batch", "accumulation"), [((4, 1), 2, [2, 5]), ((1, 4), 4, [3, 1])], ids=["to one", "to four"]
)
def test_every_gpu_has_a_part_where_nobody_has_cut_the_steps(
    bases: dict[str, tuple[str, Path]],
    counts: tuple[int, int],
    micro_batch: int,
    accumulation: list[int],
    tmp_path: Path,
) -> None:
    """Of a job that begins there; it keeps its cut on a single GPU, as one that began on one does on several."""
    begun = course(tmp_path / "begun", bases, "lora", *counts, steps=3, batch_size=9)
    del begun.parameters["micro_batch"]
    begun.training = {"steps": 3}
    begun.run([2])
    told = [line["training"] for line in begun.lines() if "micro_batch" in line.get("training", {})]
    assert [(one["micro_batch"], one["accumulation"]) for one in told] == [(micro_batch, one) for one in accumulation]
    whole = course(tmp_path / "whole", bases, "lora", 1, steps=3, batch_size=9, micro_batch=micro_batch).run()
    assert begun.points() == whole.points()


def test_memory_that_runs_out_on_one_gpu_makes_the_step_smaller_on_all(
    bases: dict[str, tuple[str, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where nobody has chosen how it is cut: it ends as if it had been cut so from the start."""
    how: dict[str, Any] = {"steps": 2, "packing": False, "edition": 4}
    right = course(tmp_path / "right", bases, "lora", 1, **how, micro_batch=1).run()
    with monkeypatch.context() as patch:
        patch.setenv("FAULT", "1 1 memory1")
        found = course(tmp_path / "found", bases, "lora", 2, **how)
        found.training = {"steps": 2}
        found.run()
    assert found.points() == right.points()
    assert "ran out in step 1 with 2 of 8 rows at once: it goes on with 1 of 8 rows" in capsys.readouterr().out


def test_memory_that_runs_out_is_told_as_by_a_single_process(
    bases: dict[str, tuple[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its owner chose how a step is cut: the same error, with the rank."""
    monkeypatch.setenv("FAULT", "1 2 memory0")
    job = course(tmp_path, bases, "lora", 2)
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^rank 1 of 2: CUDA out of memory. Tried to allocate 2"):
        job.run()


def test_a_layout_that_the_recipe_does_not_know_is_refused(bases: dict[str, tuple[str, Path]], tmp_path: Path) -> None:
    """Rather than run out of memory: with what would help."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"gpus": 2, "sharding": "fsdp"}))
    job = course(tmp_path / "job", bases, "lora", 2)
    job.environ["ALLPASS_PLAN_FILE"] = str(plan)
    with pytest.raises(SystemExit, match=r"laid out on 2 GPUs with fsdp, and the recipe keeps the whole model on each"):
        job.run()
