"""What an agent learns of its machine's GPUs, whatever nvidia-smi is like; and that it sees when they are gone."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.promised import GpuInquiry, GpuReport, report_of
from providers.emulators.nvidia_smi import WRONGS, EmulatedGpus
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from workers.agent import gpus
from workers.agent.config import Config, load
from workers.agent.gpu_watch import GpuWatch
from workers.agent.gpus import look

Start = Callable[..., AgentProcess]
GIB = 1024**3
FOUR = EmulatedGpus("A100 SXM4", 4, 40_960)
SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
OLD_DRIVER = """\
case "$*" in
*ecc*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2 ;;
*query*) echo '0, Tesla V100-SXM2-16GB, 16160, 450.80.02' ;;
*) echo '| NVIDIA-SMI 450.80.02    Driver Version: 450.80.02    CUDA Version: 11.0     |' ;;
esac
"""
TELLS_GPUS = "import os\nprint('given', os.environ.get('ALLPASS_GPUS'))"
FAILS_WHEN_TOLD = """
import os, sys, time
print("begun", flush=True)
while not os.path.exists(FLAG):
    time.sleep(0.05)
sys.exit(1)
"""
CANNOT_USE = """
import os, sys
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
    file.write('{"step": 0, "training": {"unusable": "torch is built for CUDA 13.0"}}\\n')
sys.exit("error: no GPU")
"""


def program(folder: Path, text: str) -> Path:
    """A program in the place of nvidia-smi."""
    path = folder / "nvidia-smi"
    part = folder / "part"
    part.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    part.chmod(0o755)
    part.replace(path)
    return path


def config(path: Path | None, **environ: str) -> Config:
    own = {} if path is None else {"ALLPASS_AGENT_NVIDIA_SMI": str(path)}
    return load({"ALLPASS_URL": "http://127.0.0.1:1", **own, **environ})


def seen(folder: Path, text: str, limit_s: float = 20.0) -> GpuReport:
    """What the server reads of what an agent tells."""
    report = report_of(json.loads(json.dumps(look(config(program(folder, text)), limit_s).facts())))
    assert report is not None
    return report


def test_the_gpus_of_a_machine_are_told_with_their_driver(tmp_path: Path) -> None:
    """All that is compared with the offer."""
    report = seen(tmp_path, FOUR.script())
    assert (report.seen, report.count, report.driver, report.cuda) == (GpuInquiry.ANSWERS, 4, "580.95.05", 13.0)
    assert {(gpu.name, gpu.memory_bytes, gpu.ecc_errors, gpu.is_cut) for gpu in report.gpus} == {
        ("NVIDIA A100-SXM4-40GB", 40 * GIB, 0, False)
    }


def test_an_old_driver_tells_what_it_can(tmp_path: Path) -> None:
    """It refuses a question with one column that it does not know: then it is asked for fewer."""
    report = seen(tmp_path, OLD_DRIVER)
    assert (report.count, report.driver, report.cuda) == (1, "450.80.02", 11.0)
    assert (report.gpus[0].memory_bytes, report.gpus[0].ecc_errors) == (16_160 * 1024**2, None)


def test_a_card_that_is_cut_into_instances_is_told_as_that(tmp_path: Path) -> None:
    """Its memory is not one job's, and may not be told at all."""
    report = seen(tmp_path, "echo '0, NVIDIA A100-SXM4-40GB, [Insufficient Permissions], 580.1, [N/A], Enabled'")
    (gpu,) = report.gpus
    assert (gpu.memory_bytes, gpu.ecc_errors, gpu.is_cut) == (None, None, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 'No devices were found'; exit 6", "No devices were found (exit code 6)"),
        ("echo 'GPU is lost.' >&2; exit 15", "GPU is lost. (exit code 15)"),
        ("exit 0", "it says nothing"),
        ("echo ', , , '", ", , ,"),
        ("printf '\\377\\000\\033[2J'", "??"),
        ("kill -9 $$", "it says nothing (exit code -9)"),
        ("#!/no/such/interpreter", "it cannot be started"),
    ],
)
def test_what_nvidia_smi_says_instead_is_told(tmp_path: Path, text: str, said: str) -> None:
    """In its own words, on one line that can be shown."""
    report = seen(tmp_path, text)
    assert report.seen is GpuInquiry.FAILS
    assert said in report.why
    assert report.why.isprintable()


@pytest.mark.parametrize("text", ["exec sleep 600", "sleep 600 & wait", "trap '' TERM; while :; do sleep 1; done"])
def test_one_that_hangs_is_not_waited_for(tmp_path: Path, text: str) -> None:
    """Nor is what it has started."""
    began = time.monotonic()
    found = look(config(program(tmp_path, text)), 0.5)
    assert (found.state, found.timed_out) == (gpus.FAILS, True)
    assert found.why == "it has not answered within 0.5 s"
    assert time.monotonic() - began < 60


def test_one_that_never_ends_its_answer_is_cut_off(tmp_path: Path) -> None:
    """An answer has a length, and a report has fewer GPUs than that."""
    assert seen(tmp_path, "yes '0, NVIDIA A100, 40960, 580.1, 0, Disabled'").seen is GpuInquiry.FAILS
    row = "', ' + 'x' * 400 + ', 40960, 580.1, 0, Disabled'"
    many = f"#!{sys.executable}\nfor at in range(500): print(str(at) + {row})"
    report = seen(tmp_path, many)
    assert (report.count, len(report.gpus)) == (500, 64)
    assert len(json.dumps(look(config(tmp_path / "nvidia-smi")).facts())) < 14_000


@settings(max_examples=15, deadline=None)
@given(st.binary(max_size=300))
def test_any_answer_is_read(tmp_path_factory: pytest.TempPathFactory, answer: bytes) -> None:
    """What does not make sense is left out, and nothing raises."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "answer").write_bytes(answer)
    assert seen(folder, f"cat {folder / 'answer'}").seen in {GpuInquiry.FAILS, GpuInquiry.ANSWERS}


def test_a_machine_without_one_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And one that shares its host does not look at the host's."""
    program(tmp_path, FOUR.script())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look(config(None)).number == 4
    shared = look(config(None, ALLPASS_AGENT_SHARES_HOST="1"))
    assert (shared.state, shared.facts()) == (gpus.SHARED, {"gpus": [], "nvidia_smi": {"state": "shared"}})
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert look(config(None)).facts() == {"gpus": [], "nvidia_smi": {"state": "absent"}}


@pytest.mark.parametrize("wrong", sorted(set(WRONGS) - {"silent", "computes", "crashes"}))
def test_each_fault_of_the_emulated_one_is_seen(tmp_path: Path, wrong: str) -> None:
    """Otherwise a row of the fault matrix would prove nothing."""
    good = seen(tmp_path, FOUR.script())
    assert seen(tmp_path, EmulatedGpus("A100 SXM4", 4, 40_960, wrong=wrong).script()) != good


# -- while the machine lives


def watch(folder: Path, lost: list[str], first: str = FOUR.script()) -> GpuWatch:
    return GpuWatch(config(program(folder, first), ALLPASS_AGENT_GPU_LOOK_S="0"), lost.append)


@pytest.mark.parametrize("wrong", ["lost", "broken", "missing"])
def test_gpus_that_were_there_are_missed(tmp_path: Path, wrong: str) -> None:
    """Once, and for good: a card that comes back is not trusted."""
    lost: list[str] = []
    watching = watch(tmp_path, lost)
    assert watching.look_again() is None
    program(tmp_path, EmulatedGpus("A100 SXM4", 4, 40_960, wrong=wrong).script())
    assert watching.look_again() == lost[0]
    program(tmp_path, FOUR.script())
    assert watching.look_again() == lost[0]
    assert len(lost) == 1


def test_one_bad_answer_is_none(tmp_path: Path) -> None:
    """A driver may stumble; another answer has to agree."""
    lost: list[str] = []
    watching = watch(tmp_path, lost)
    once = f"mkdir {tmp_path / 'stumbled'} 2>/dev/null && exit 9\n" + FOUR.script().partition("\n")[2]
    program(tmp_path, once)
    assert watching.look_again() is None
    assert (tmp_path / "stumbled").is_dir()
    assert lost == []


def test_a_busy_machine_is_not_a_broken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that does not come has to fail to come several times in a row."""
    monkeypatch.setattr("workers.agent.gpu_watch._AT_AN_END_S", 0.3)
    lost: list[str] = []
    watching = watch(tmp_path, lost)
    for _ in range(2):
        program(tmp_path, "exec sleep 600")
        assert [watching.look_again() for _ in range(2)] == [None, None]
        monkeypatch.setattr("workers.agent.gpu_watch._AT_AN_END_S", 20.0)
        program(tmp_path, FOUR.script())
        assert watching.look_again() is None
        monkeypatch.setattr("workers.agent.gpu_watch._AT_AN_END_S", 0.3)
    program(tmp_path, "exec sleep 600")
    assert [watching.look_again() for _ in range(3)][-1] == "nvidia-smi has not answered 3 times in a row"


@pytest.mark.parametrize("text", ["exit 9", None])
def test_where_nothing_answered_at_first_nothing_is_missed(tmp_path: Path, text: str | None) -> None:
    """The server has judged that already."""
    lost: list[str] = []
    asked = config(None, ALLPASS_AGENT_SHARES_HOST="1") if text is None else config(program(tmp_path, text))
    watching = GpuWatch(asked, lost.append)
    watching.start()
    assert (watching.look_again(), lost) == (None, [])
    watching.stop()


def test_they_are_looked_at_again_and_again(tmp_path: Path) -> None:
    """Also while nothing ends."""
    gone = threading.Event()
    asked = config(program(tmp_path, FOUR.script()), ALLPASS_AGENT_GPU_LOOK_S="1")
    watching = GpuWatch(asked, lambda _: gone.set())
    watching.start()
    program(tmp_path, "exit 6")
    assert gone.wait(60)
    watching.stop()


# -- an agent


def test_an_agent_tells_its_gpus_with_its_first_call(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """Before it may join."""
    start_agent(ALLPASS_AGENT_NVIDIA_SMI=str(program(tmp_path, FOUR.script())))
    plane.wait(lambda: plane.syncs, "a first call")
    report = report_of(plane.syncs[0].host)
    assert report is not None
    assert (report.seen, report.count) == (GpuInquiry.ANSWERS, 4)


def test_a_failure_after_the_gpus_were_lost_is_the_machines(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """The script ends with an error of its own, as one does whose GPU is gone: its owner is not to blame, and the
    server hears of the GPUs no later than of the end."""
    path = program(open_folder, FOUR.script())
    start_agent(ALLPASS_AGENT_NVIDIA_SMI=str(path), ALLPASS_AGENT_GPU_LOOK_S="0")
    flag = open_folder / "flag"
    run = desired(plane, FAILS_WHEN_TOLD.replace("FLAG", repr(str(flag))))
    plane.want(run)
    plane.wait(lambda: "begun" in plane.log(run.run_id), "the script")
    program(open_folder, EmulatedGpus("A100 SXM4", 4, 40_960, wrong="lost").script())
    flag.touch()
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.machine_fault) == (None, True)
    assert "GPU is lost" in (ended.environment_error or "")
    of_the_end = next(sync for sync in plane.syncs if any(report.exit is not None for report in sync.runs))
    assert "GPU is lost" in of_the_end.host["gpu_fault"]
    assert of_the_end.host["draining"] is True


def test_gpus_that_are_lost_are_told_while_code_runs(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """A training whose card has gone may hang for ever."""
    path = program(tmp_path, FOUR.script())
    start_agent(ALLPASS_AGENT_NVIDIA_SMI=str(path), ALLPASS_AGENT_GPU_LOOK_S="1")
    run = desired(plane, SLEEPS)
    plane.want(run)
    plane.wait(lambda: "begun" in plane.log(run.run_id), "the script")
    program(tmp_path, EmulatedGpus("A100 SXM4", 4, 40_960, wrong="lost").script())
    plane.wait(lambda: plane.syncs[-1].host.get("gpu_fault"), "word of the lost GPUs")


def test_a_failure_on_a_good_machine_is_the_codes(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """Looking changes nothing."""
    start_agent(ALLPASS_AGENT_NVIDIA_SMI=str(program(tmp_path, FOUR.script())))
    run = desired(plane, "raise SystemExit(7)")
    plane.want(run)
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.machine_fault) == (7, False)


def test_code_that_cannot_use_its_gpus_blames_the_machine(plane: Plane, start_agent: Start) -> None:
    """It says so in the metrics file; another machine may do better, and nothing more runs on this one."""
    start_agent()
    run = desired(plane, CANNOT_USE)
    plane.want(run)
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.machine_fault) == (None, True)
    assert "torch is built for CUDA 13.0" in (ended.environment_error or "")
    plane.wait(lambda: "fault" in plane.syncs[-1].host, "word of the fault")
    assert "gpu_fault" not in plane.syncs[-1].host  # the word of code is not enough for more


def test_a_run_is_told_which_gpus_it_was_given(
    plane: Plane, start_agent: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names, of those that are its own; nothing where they are only played."""
    path = program(tmp_path, FOUR.script())
    start_agent(ALLPASS_AGENT_NVIDIA_SMI=str(path))
    first = desired(plane, TELLS_GPUS, gpu_indices=[0, 2])
    plane.want(first)
    plane.wait_exit(first.run_id)
    plane.wait_log(first.run_id, "given None")
    monkeypatch.setenv("PATH", str(tmp_path) + ":/usr/bin:/bin")
    watching = GpuWatch(config(None, ALLPASS_AGENT_GPU_LOOK_S="0"), lambda _: None)
    two = {"CUDA_VISIBLE_DEVICES": "0,2", "ALLPASS_GPUS": "NVIDIA A100-SXM4-40GB, NVIDIA A100-SXM4-40GB"}
    assert watching.variables([0, 2]) == two
    assert watching.variables([7]) == {"CUDA_VISIBLE_DEVICES": "7"}


TELLS_VISIBLE = "import os\nprint('visible', os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"


def test_a_machine_with_some_of_its_hosts_gpus_counts_its_own(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """The server and the job count from 0 on; what the job sees are the host's numbers of these alone."""
    path = program(tmp_path, FOUR.script())
    shares = {"ALLPASS_AGENT_SHARES_HOST": "1", "ALLPASS_AGENT_GPUS": "3,1"}
    start_agent(ALLPASS_AGENT_NVIDIA_SMI=str(path), **shares)
    run = desired(plane, TELLS_VISIBLE, gpu_indices=[1])
    plane.want(run)
    plane.wait_log(run.run_id, "visible 1 PCI_BUS_ID")
    plane.wait_exit(run.run_id)
    assert [gpu["index"] for gpu in plane.syncs[-1].host["gpus"]] == [0, 1]
    assert plane.syncs[-1].host["nvidia_smi"]["count"] == 2


def test_how_busy_gpus_are_is_told_of_its_own_alone(tmp_path: Path) -> None:
    path = program(tmp_path, "echo '0, 10, 1000'\necho '1, 20, 2000'\necho '2, 30, 3000'")
    named = config(path, ALLPASS_AGENT_GPUS="2,0,9")
    assert gpus.ask_use(named, 5.0) == {0: (30, 3000 * 2**20), 1: (10, 1000 * 2**20)}
    assert [gpus.host_index(named, index) for index in (0, 1, 7)] == [2, 0, 7]


def test_gpus_that_are_to_be_its_own_and_are_not_there_are_a_failure(tmp_path: Path) -> None:
    found = look(config(program(tmp_path, FOUR.script()), ALLPASS_AGENT_GPUS="8"))
    assert (found.state, found.number) == (gpus.FAILS, 0)
    assert "none of the GPUs 8" in found.why


@pytest.mark.parametrize("text", ["a", "-1", "0;1", "1,", "1.5", "99999"])
def test_numbers_of_gpus_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ALLPASS_AGENT_GPUS"):
        config(None, ALLPASS_AGENT_GPUS=text)
