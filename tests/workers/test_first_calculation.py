"""Each GPU calculates something before user code may run: what comes of it, and what counts against no machine."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.gpu_checks import Checked, gpu_check_of
from providers.emulators.nvidia_smi import EmulatedGpus
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Fault, Plane
from workers.agent import gpu_check
from workers.agent.config import Config, load
from workers.agent.errors import Aborted
from workers.agent.first_calculation import FAILED, RIGHT, UNCHECKED, CalculationResult, FirstCalculation, check
from workers.agent.gpus import Gpus, look
from workers.machines import torch_double

Start = Callable[..., AgentProcess]
PROGRAM = Path(gpu_check.__file__)
SAYS = "print('the script runs')"


def torch_that(folder: Path, plays: str) -> Path:
    """A stand-in for torch."""
    place = folder / f"torch-{plays}"
    place.mkdir()
    shutil.copyfile(torch_double.__file__, place / "torch.py")
    (place / "plays").write_text(plays)
    return place


def shown(folder: Path, count: int = 1, **more: str) -> Path:
    """An nvidia-smi that shows A100s."""
    path = folder / "nvidia-smi"
    path.write_text(EmulatedGpus("A100 SXM4", count, 40_960, **more).script())
    path.chmod(0o755)
    return path


def config(folder: Path, torch: Path | None, count: int = 1, **more: str) -> Config:
    own = {"ALLPASS_URL": "http://127.0.0.1:1", "ALLPASS_AGENT_ROOT": str(folder), "ALLPASS_AGENT_GPU_CHECK": "1"}
    if torch is not None:
        own["ALLPASS_AGENT_TORCH"] = str(torch)
    return load({**own, "ALLPASS_AGENT_NVIDIA_SMI": str(shown(folder, count)), **more})


def checked(
    folder: Path, torch: Path | None, *, gpus: Gpus | None = None, count: int = 1, **limits: float
) -> CalculationResult:
    asked = config(folder, torch, count)
    return check(asked, PROGRAM, gpus or look(asked), threading.Event(), **limits)  # type: ignore[arg-type]


# -- what comes of it


def test_a_gpu_that_computes_is_told_so(tmp_path: Path) -> None:
    """All of them, each in a process of its own."""
    began = time.monotonic()
    result = checked(tmp_path, torch_that(tmp_path, "right"), count=4)
    assert (result.state, result.why, result.torch) == (RIGHT, "", "2.13.0+played")
    assert 1_000 <= result.ms <= 1000 * (time.monotonic() - began)


@pytest.mark.parametrize(
    ("plays", "said"),
    [
        ("wrong", "GPU 0: a product of two matrices (float32) is not what the CPU has worked out"),
        ("error", "GPU 0: RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        ("crash", "GPU 0: a first calculation ended its process by signal 11"),
    ],
)
def test_a_gpu_that_does_not_compute_is_a_failure(tmp_path: Path, plays: str, said: str) -> None:
    """In words that say what happened, and to which."""
    result = checked(tmp_path, torch_that(tmp_path, plays))
    assert (result.state, result.why) == (FAILED, said)


def test_a_gpu_that_never_ends_is_a_failure(tmp_path: Path) -> None:
    """And nothing of it is left."""
    began = time.monotonic()
    result = checked(tmp_path, torch_that(tmp_path, "hang"), device_s=0.5)
    assert (result.state, result.why) == (FAILED, "GPU 0: a first calculation had not ended after 0.5 s")
    assert time.monotonic() - began < 30
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False)
    assert left.stdout == b""


def test_one_bad_gpu_of_several_is_enough(tmp_path: Path) -> None:
    """It is named, by the number that nvidia-smi gives it."""
    torch = torch_that(tmp_path, "wrong")
    double = (torch / "torch.py").read_text()
    only_the_third = '_plays = "wrong" if os.environ["CUDA_VISIBLE_DEVICES"] == "2" else "right"'
    (torch / "torch.py").write_text(f"{double}\n{only_the_third}\n")
    result = checked(tmp_path, torch, count=4)
    assert result.state == FAILED
    assert result.why.startswith("GPU 2: a product")


# -- what does not count against a machine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "torch cannot be loaded: ImportError"),
        ("import os; os._exit(3)", "torch ended its process with exit code 3 before it was loaded"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "torch ended its process by signal 4"),
        ("print('no json'); raise SystemExit('x')", "torch ended its process with exit code 1"),
    ],
)
def test_a_torch_that_cannot_be_loaded_says_nothing_of_the_gpu(tmp_path: Path, text: str, said: str) -> None:
    """The image is to blame, and would be so everywhere."""
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "torch.py").write_text(text)
    result = checked(tmp_path, tmp_path / "bad")
    assert result.state == UNCHECKED
    assert said in result.why


def test_a_torch_that_takes_long_to_load_is_left(tmp_path: Path) -> None:
    """A slow disk is no broken card."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "torch.py").write_text("import time; time.sleep(600)")
    result = checked(tmp_path, tmp_path / "slow", load_s=0.5)
    assert (result.state, result.why) == (UNCHECKED, "torch had not ended after 0.5 s before it was loaded")


def test_a_torch_for_other_cards_says_nothing_of_this_one(tmp_path: Path) -> None:
    """Every host with such a card would be barred, one after the other."""
    result = checked(tmp_path, torch_that(tmp_path, "unable"))
    assert result.state == UNCHECKED
    assert "no kernel image" in result.why


def test_a_torch_for_a_newer_driver_says_nothing_of_the_gpu(tmp_path: Path) -> None:
    """What it says then is a consequence."""
    old = look(load({"ALLPASS_URL": "http://x", "ALLPASS_AGENT_NVIDIA_SMI": str(shown(tmp_path, wrong="driver"))}))
    for plays in ("error", "crash"):
        result = checked(tmp_path, torch_that(tmp_path, plays), gpus=old)
        assert (result.state, result.why) == (UNCHECKED, "its torch is for CUDA 13.0, its driver knows 12.4")


def test_without_torch_nothing_is_checked(tmp_path: Path) -> None:
    """As in an image for other work: told, and no failure."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    asked = config(tmp_path, None, ALLPASS_AGENT_PYTHON=str(python))
    result = check(asked, PROGRAM, look(asked), threading.Event())
    assert result.state == UNCHECKED
    assert "No module named 'torch'" in result.why


@pytest.mark.parametrize("state", ["fails", "absent", "shared"])
def test_without_known_gpus_nothing_is_checked(tmp_path: Path, state: str) -> None:
    """What nvidia-smi does not tell is judged elsewhere."""
    result = checked(tmp_path, torch_that(tmp_path, "wrong"), gpus=Gpus(state))
    assert result.state == UNCHECKED


def test_a_process_of_a_shared_host_has_no_gpu_to_check(tmp_path: Path) -> None:
    """But for one whose GPU is played to the end."""
    asked = config(tmp_path, None, ALLPASS_AGENT_SHARES_HOST="1")
    assert check(asked, PROGRAM, look(asked), threading.Event()).state == UNCHECKED


def test_a_python_that_cannot_be_started_keeps_no_machine_from_work(tmp_path: Path) -> None:
    """Nor does any mistake of ours."""
    over: list[CalculationResult] = []
    asked = config(tmp_path, torch_that(tmp_path, "wrong"), ALLPASS_AGENT_PYTHON=str(tmp_path / "none"))
    calculation = FirstCalculation(asked, PROGRAM, look(asked), over.append)
    calculation.start()
    calculation.wait(threading.Event())
    assert "FileNotFoundError" in over[0].why


# -- the program


def test_the_real_torch_computes_on_the_cpu(tmp_path: Path) -> None:
    """The same program, with the torch of these tests and the CPU as the device."""
    pytest.importorskip("torch")
    asked = config(tmp_path, None)
    result = check(asked, PROGRAM, look(asked), threading.Event(), device="cpu")
    assert (result.state, result.why) == (RIGHT, "")


def test_a_single_wrong_number_shows() -> None:
    """Of a million in the product, and of those that are copied; a transposed product shows, too."""
    torch = pytest.importorskip("torch")
    first, second, product = gpu_check._worked_out(torch)
    sent = torch.arange(1000, dtype=torch.int32)
    assert gpu_check._wrong(torch, "cpu", sent, first, second, product) == ""
    assert product.unique().numel() > 50
    assert product.abs().max() <= 2048, "exact in half precision"
    for other in (product.clone().index_put_((torch.tensor(7), torch.tensor(9)), torch.tensor(0.5)), product.T):
        assert "matrices" in gpu_check._wrong(torch, "cpu", sent, first, second, other)
    assert torch.equal(first.half() @ second.half(), product.half())


def test_the_stand_in_has_all_that_the_program_asks_torch_for() -> None:
    """Else its part of the tests would prove nothing."""
    tree = ast.parse(PROGRAM.read_text())
    asked = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"
    }
    assert asked - set(dir(torch_double)) == set()
    assert {"arange", "equal", "float16"} <= asked


# -- the agent


def start_checked(start_agent: Start, folder: Path, plays: str, **more: str) -> AgentProcess:
    own = {"ALLPASS_AGENT_NVIDIA_SMI": str(shown(folder)), "ALLPASS_AGENT_TORCH": str(torch_that(folder, plays))}
    return start_agent(**{"ALLPASS_AGENT_GPU_CHECK": "1", **own, **more})


def test_an_agent_tells_what_came_of_it(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """With the facts of its machine, and once as a notice."""
    start_checked(start_agent, tmp_path, "right")
    plane.wait(lambda: "gpu_check" in plane.syncs[-1].host if plane.syncs else False, "the result")
    check = gpu_check_of(plane.syncs[-1].host)
    assert check is not None
    assert check.result is Checked.RIGHT

    def notices() -> list[str]:
        return [notice["kind"] for sync in plane.syncs for notice in sync.host.get("notices", [])]

    plane.wait(lambda: "node_gpus_checked" in notices(), "the notice, which may follow in the next call")


def test_the_machine_joins_and_fetches_while_it_calculates(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """No user code runs before the end of it, nor an installer."""
    run = desired(plane, SAYS)
    plane.want(run)
    start_checked(start_agent, tmp_path, "right")
    plane.wait(lambda: plane.syncs, "a first call")
    assert "gpu_check" not in plane.syncs[0].host
    plane.wait_exit(run.run_id)
    assert run.spec.bundle_sha256 in plane.read
    assert "gpu_check" in plane.syncs[_ran(plane)[0]].host


def test_no_code_runs_before_the_server_has_heard_of_a_failure(
    plane: Plane, start_agent: Start, tmp_path: Path
) -> None:
    """It ends the machine, or lets it go on: as the release before does, which does not know what it is told."""
    run = desired(plane, SAYS)
    plane.want(run)
    start_checked(start_agent, tmp_path, "wrong")
    ended = plane.wait_exit(run.run_id)
    assert ended.exit_code == 0
    told = [index for index, sync in enumerate(plane.syncs) if "gpu_check" in sync.host]
    assert told[0] < _ran(plane)[0]


def _ran(plane: Plane) -> list[int]:
    """The calls that tell of code that has begun. What is over in a moment may be over when the first of them comes."""
    begun = ("running", "exited")
    return [index for index, sync in enumerate(plane.syncs) if any(report.phase in begun for report in sync.runs)]


def test_a_machine_that_is_sent_away_runs_nothing(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """Its agent ends, whatever run it was preparing."""
    plane.want(desired(plane, SAYS))
    agent = start_checked(start_agent, tmp_path, "hang")
    plane.wait(lambda: plane.syncs and plane.syncs[-1].runs, "a run that is prepared")
    plane.faults.append(Fault("/sync", 401, "unauthenticated"))
    assert agent.wait() == 3
    assert not any(report.phase == "running" for report in plane.reports)


def test_an_agent_that_was_not_asked_does_not_check(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """As on serverless machines, by default: nothing waits."""
    run = desired(plane, SAYS)
    plane.want(run)
    start_checked(start_agent, tmp_path, "hang", ALLPASS_AGENT_GPU_CHECK="0")
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert not any("gpu_check" in sync.host for sync in plane.syncs)


def test_nothing_but_the_machines_own_torch_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables, the folder it stands in, files of the user that it runs as: none of them changes what calculates."""
    for name in ("torch.py", "sitecustomize.py", "usercustomize.py"):
        (tmp_path / name).write_text(f"raise SystemExit('{name} was loaded')")
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "PYTHONUSERBASE", "PYTHONSTARTUP", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD"):
        monkeypatch.setenv(name, str(tmp_path))
    result = checked(tmp_path, torch_that(tmp_path, "right"))
    assert (result.state, result.why) == (RIGHT, "")


def test_a_wait_ends_with_its_run(tmp_path: Path) -> None:
    """A run that is not wanted any more does not wait for a GPU."""
    asked = config(tmp_path, torch_that(tmp_path, "hang"))
    calculation = FirstCalculation(asked, PROGRAM, look(asked), lambda _: None)
    calculation.start()
    gone = threading.Event()
    gone.set()
    with pytest.raises(Aborted):
        calculation.wait(gone)
    calculation.stop()
