"""A training on several GPUs outlives its processes but the first, and ends as one: by a stop, or by an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.packing import SCRIPT
from app.core.out_of_memory import Ran, ran_out
from tests.training.gangs import template_of
from tests.training.scripts import REPOSITORY, Host, Machine, files_of, wait_for_step

pytestmark = pytest.mark.training
GANG = "../tests/training/gang_script.py"
SUMS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(16)]
QUICK: dict[str, Any] = {
    "steps": 4, "batch_size": 8, "micro_batch": 2, "learning_rate": 5e-3, "precision": "fp32", "lora_dropout": 0.2,
    "edition": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("ground")
    return tiny.llama(folder / "llama"), tiny.write_rows(folder / "sums", "prompt", SUMS)


def machine(
    folder: Path,
    ground: tuple[str, Path],
    count: int,
    followers: str,
    resume_from: Path | None = None,
    fault: str = "",
    **more: Any,
) -> Machine:
    """A job on so many played GPUs."""
    model, rows = ground
    found = Machine(folder, {"model": model, **QUICK, **more}, resume_from)
    found.environment |= {
        **template_of(folder, count),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count))),
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "sdk"))),
        "ROWS": str(rows),
        "FORKS": followers,
        "FAULT": fault,
        **({"PATIENCE_S": "16"} if fault.endswith(("hang", "halt")) else {}),
    }
    return found


@pytest.fixture(scope="module")
def alone(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Machine:
    """On a single GPU."""
    place = machine(tmp_path_factory.mktemp("alone") / "job", ground, 1, followers)
    assert hosts[0].start(GANG, place).exit_code() == 0
    return place


@pytest.mark.parametrize(
    ("fault", "count", "how"),
    [
        ("1 1 kill", 2, "rank 1 of 2 was killed (SIGKILL)"),
        ("2 2 kill", 4, "rank 2 of 4 was killed (SIGKILL)"),
        ("1 4 exit", 3, "rank 1 of 3 ended with code 0 before the training did"),
        ("1 2 hang", 3, "rank 1 of 3 hangs: nothing has moved for 16 s"),
        ("2 2 halt", 3, "rank 2 of 3 hangs: nothing has moved for 16 s"),
    ],
)
def test_a_rank_that_is_lost_costs_a_step_and_no_bit(
    hosts: tuple[Host, Host],
    followers: str,
    ground: tuple[str, Path],
    alone: Machine,
    fault: str,
    count: int,
    how: str,
    tmp_path: Path,
) -> None:
    """In the first step, in the middle, in the last one: it is said which and how, the others go on, and all is as if
    nothing had happened. Nobody is left at the end."""
    place = machine(tmp_path / "job", ground, count, followers, fault=fault)
    process = hosts[0].start(GANG, place)
    assert process.exit_code() == 0, process.output
    step = int(fault.split()[1])
    assert f"training: {how}: those that are left take its step again" in process.output
    assert f"training: goes on with step {step} on " in process.output
    assert place.losses() == alone.losses()
    assert files_of(place.folder / "output") == files_of(alone.folder / "output")
    assert not left_of(place)


def test_who_is_about_a_long_part_is_waited_for(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], alone: Machine, tmp_path: Path
) -> None:
    """One that is left hears of a loss when its part is done, as long as that takes: it is not lost as well."""
    place = machine(tmp_path / "job", ground, 3, followers, fault="1 3 kill;2 1+ slow")
    place.environment["LOSS_S"] = "0.2"
    process = hosts[0].start(GANG, place)
    assert process.exit_code() == 0, process.output
    assert process.output.count("and another process begins in its place") == 1, process.output
    assert place.losses() == alone.losses()


def test_another_one_takes_its_place(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    """Once it has loaded, while the training goes on."""
    whole = machine(tmp_path / "whole", ground, 1, followers, steps=300)
    place = machine(tmp_path / "job", ground, 2, followers, fault="1 2 kill", steps=300)
    first, second = hosts[0].start(GANG, whole), hosts[1].start(GANG, place)
    assert (first.exit_code(), second.exit_code()) == (0, 0), first.output + second.output
    told = [line for line in second.output.splitlines() if line.startswith("training: goes on with step")]
    assert " on 2 GPUs, after " in told[-1], told  # after 1; after 2 where it has loaded before the first one looks
    assert place.losses() == whole.losses()
    assert files_of(place.folder / "output") == files_of(whole.folder / "output")


def test_where_they_are_lost_again_and_again_it_ends(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    """Another machine is better then: as it would have been killed itself."""
    place = machine(tmp_path / "job", ground, 2, followers, fault="1 2+ kill", steps=100_000)
    process = hosts[0].start(GANG, place)
    assert process.exit_code() == 137, process.output
    assert process.output.count("and another process begins in its place") == 3
    assert process.output.splitlines()[-1] == "error: rank 1 of 2 was killed (SIGKILL): the others were ended"
    assert not left_of(place)


@pytest.mark.parametrize("way", ["part", "sum"])
def test_a_way_that_breaks_costs_a_step(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], alone: Machine, way: str, tmp_path: Path
) -> None:
    """Though nobody is gone: they meet again. In either exchange."""
    place = machine(tmp_path / "job", ground, 3, followers, fault=f"1 2 {way}")
    process = hosts[0].start(GANG, place)
    assert process.exit_code() == 0, process.output
    assert "training: goes on with step 2 on 3 GPUs, after 3" in process.output
    assert place.losses() == alone.losses()
    assert files_of(place.folder / "output") == files_of(alone.folder / "output")


def test_ways_that_break_again_and_again_end_it(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    """Rather than that they meet for ever."""
    place = machine(tmp_path / "job", ground, 2, followers, fault="1 2+ part")
    process = hosts[0].start(GANG, place)
    assert process.exit_code() == 1, process.output
    assert process.output.count("training: goes on with step 2 on 2 GPUs, after 2") == 3
    last = process.output.splitlines()[-1]
    assert last.startswith("error: the processes of this training lose each other again and again: "), last
    assert not left_of(place)


@pytest.mark.parametrize(
    ("fault", "last"),
    [
        ("2 2 raise", "error: rank 2 of 3: ValueError: no such number"),
        ("1 2 memory0", "OutOfMemoryError: rank 1 of 3: CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_an_error_of_a_rank_is_the_trainings(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], fault: str, last: str, tmp_path: Path
) -> None:
    """It would only come again. The last line says which and why; its own words come before, with its rank."""
    place = machine(tmp_path / "job", ground, 3, followers, fault=fault)
    process = hosts[0].start(GANG, place)
    assert process.exit_code() == 1, process.output
    lines = process.output.splitlines()
    assert lines[-1].endswith(last), process.output
    assert sorted(place.losses()) == [1]
    assert ("rank 2: ValueError: no such number" in lines) == (fault == "2 2 raise")
    assert (ran_out(1, process.output) is Ran.GPU) == ("memory" in fault)
    assert not left_of(place)


def left_of(place: Machine) -> list[str]:
    """Processes of a job that are still there, a moment after its end."""
    end_s = time.monotonic() + 20
    while found := [path.name for path in Path("/proc").iterdir() if path.name.isdigit() and is_of(path, place)]:
        if time.monotonic() > end_s:
            return found
        time.sleep(0.05)
    return []


def is_of(process: Path, place: Machine) -> bool:
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has just ended
        return False
    return f"ALLPASS_OUTPUT_DIR={place.environment['ALLPASS_OUTPUT_DIR']}".encode() in variables


def test_a_stop_saves_the_step_and_the_job_goes_on_as_if_left_alone(
    ground: tuple[str, Path], hosts: tuple[Host, Host], followers: str, tmp_path: Path
) -> None:
    """As the very script of a job, and as real processes: also where all of them hear of it."""
    whole = machine(tmp_path / "whole", ground, 1, followers, steps=150)
    place = machine(tmp_path / "job", ground, 2, followers, steps=150)
    script = place.folder / "finetune.py"
    script.write_text(SCRIPT)
    for file in ground[1].iterdir():
        (place.folder / file.name).write_bytes(file.read_bytes())
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=place.folder,
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    wait_for_step(place, 1)
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output
    assert "training: on 2 GPUs, which share the 4 parts of 2 rows of a step" in output
    assert "Traceback" not in output
    (checkpoint,) = place.announced()
    assert not left_of(place)
    on = machine(tmp_path / "on", ground, 3, followers, checkpoint, steps=150)
    first, second = hosts[0].start(GANG, whole), hosts[1].start(GANG, on)
    assert (first.exit_code(), second.exit_code()) == (0, 0), first.output + second.output
    assert place.losses() | on.losses() == whole.losses()
    assert files_of(on.folder / "output") == files_of(whole.folder / "output")
