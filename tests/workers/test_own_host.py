"""What a host looks at before it joins a pool, what it keeps, and what it does with orders."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.emulators.nvidia_smi import EmulatedGpus
from tests.folders import open_to_all
from workers.agent.transport import Transport
from workers.host import command
from workers.host.build import packed_host
from workers.host.facts import GPUS, busy_gpus, check_usable, facts_of, hardware, look_at_gpus
from workers.host.kept import Kept
from workers.host.machines import HostMachines
from workers.host.place import HostError, HostPlace, Member
from workers.host.talk import fetch_agent

GIB = 1024**3
MACHINE = f"mach_{secrets.token_hex(10).upper()}"  # processes of other tests have other marks


@pytest.fixture
def root() -> Iterator[Path]:
    with open_to_all() as folder:
        yield folder


def smi(folder: Path, text: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)


def test_gpus_are_told_as_nvidia_smi_tells_them(tmp_path: Path) -> None:
    program = smi(tmp_path, EmulatedGpus("A100 SXM4", 2, 40_960).script())
    told = facts_of(tmp_path, GPUS, program, 0)
    assert [(gpu["index"], gpu["name"], gpu["busy"]) for gpu in told["gpus"]] == [
        (0, "NVIDIA A100-SXM4-40GB", False),
        (1, "NVIDIA A100-SXM4-40GB", False),
    ]
    assert told["gpus"][0]["memory_bytes"] == 40_960 * 2**20
    assert told["unusable"] == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo '0, GPU-1, 16160, 450.80.02, Tesla V100'", "driver 450.80.02 is too old"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "Failed to initialize NVML"),
        ("echo 'No devices were found'; exit 6", "No devices were found"),
        ("exit 1", "says 'nothing'"),
        ("head -c 300000 /dev/zero", "no GPU can be used here"),
        ("echo '0, GPU-1, many, 550.1, T4'; echo ', , , , '; echo 'x'", "no GPU can be used here"),
    ],
)
def test_a_host_that_cannot_be_used_says_why_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    told = facts_of(tmp_path, GPUS, smi(tmp_path, text), 0)
    assert says in told["unusable"]
    assert len(told["unusable"]) <= 300
    with pytest.raises(HostError):
        check_usable(told, GPUS)


def test_one_line_that_is_none_hides_no_gpu(tmp_path: Path) -> None:
    text = (
        "echo 'Unable to determine the device handle for GPU 0000:01:00.0'; echo '1, GPU-00000001, 16160, 550.1, T4, x'"
    )
    look = look_at_gpus(smi(tmp_path, text))
    assert [(gpu.index, gpu.name) for gpu in look.gpus] == [(1, "T4, x")]


def test_without_nvidia_smi_the_way_out_is_named(tmp_path: Path) -> None:
    told = facts_of(tmp_path, GPUS, str(tmp_path / "none"), 0)
    with pytest.raises(HostError, match="--cpu"):
        check_usable(told, GPUS)


def test_gpus_on_which_others_compute_are_busy(tmp_path: Path) -> None:
    """Ours are not; a driver that does not tell makes none so; rubbish is left out."""
    program = smi(tmp_path, EmulatedGpus("A100 SXM4", 3, 40_960).script())
    gpus = look_at_gpus(program).gpus
    lines = [f"{gpus[0].uuid}, 100", f"{gpus[1].uuid}, 200", "GPU-unknown, 3", "[Insufficient Permissions]", ""]
    Path(program + ".apps").write_text("\n".join(lines))
    assert set(busy_gpus(program, gpus, lambda pid: pid == 100)) == {1}
    Path(program + ".apps").unlink()
    assert set(busy_gpus(program, gpus, lambda _: False)) == set()


def test_a_full_disk_is_said_with_what_can_be_done(tmp_path: Path) -> None:
    told = facts_of(tmp_path, "cpus", "", 2**60)
    assert "are to stay free" in told["unusable"]
    assert "--keep-free-gb" in told["unusable"]


def test_who_a_host_is_stays_the_same_until_it_leaves(root: Path) -> None:
    place = HostPlace(root)
    place.prepare()
    nonce, member = place.nonce(), Member("http://x", "host_1", "token", "lab")
    place.set_member(member)
    again = HostPlace(root)
    assert (again.nonce(), again.member()) == (nonce, member)
    assert (root / "member.json").stat().st_mode & 0o777 == 0o600
    (root / "member.json").write_text('{"url": "http')
    assert again.member() is None
    place.forget()
    assert place.nonce() != nonce


def test_a_disk_that_was_copied_makes_no_second_machine_of_one_member(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one member, two machines would end each other's jobs by turns. Joining anew makes the copy another host."""
    place = HostPlace(root)
    place.prepare()
    nonce = place.nonce()
    place.set_member(Member("http://127.0.0.1:9", "host_1", "token", "lab", hardware="a-1"))
    monkeypatch.setattr(command, "hardware", lambda: "b-2")
    for word in ("run", "status", "leave"):
        assert command.main(["--root", str(root), word]) == 1
        assert "copied from the one of host_1 in pool lab" in capsys.readouterr().err
        assert place.member() is not None, "it may be the first one's disk, in a new machine: nothing is thrown away"
    (root / "token").write_text("apj_1")
    join = ["--root", str(root), "join", "http://127.0.0.1:9", "--cpu", "--token-file", str(root / "token")]
    assert command.main(join) == 1, "nobody listens there"
    assert (place.member(), place.nonce() == nonce) == (None, False)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["switch"], "'switch' is not key=value"),
        (["switch="], "'switch=' is not key=value"),
        (["=leaf-3"], "'=leaf-3' is not key=value"),
        (["a=1", "a = 2"], "'a' is given twice"),
    ],
)
def test_labels_that_are_none_are_refused_before_anything_is_made(
    root: Path, capsys: pytest.CaptureFixture[str], labels: list[str], told: str
) -> None:
    words = [word for one in labels for word in ("--label", one)]
    assert command.main(["--root", str(root / "new"), "join", "http://127.0.0.1:9", "--cpu", *words]) == 1
    assert told in capsys.readouterr().err
    assert not (root / "new").exists()


@pytest.mark.parametrize(("joined", "now"), [("", "b-2"), ("a-1", ""), ("", ""), ("a-1", "a-1")])
def test_a_machine_that_cannot_be_told_apart_is_believed(root: Path, joined: str, now: str) -> None:
    place = HostPlace(root)
    place.prepare()
    assert not place.is_copied(now)
    place.set_member(Member("http://127.0.0.1:9", "host_1", "token", "lab", hardware=joined))
    assert not place.is_copied(now)


def test_a_machine_is_named_by_its_firmware_where_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "uuid").write_text("4C4C4544-0042\n")
    assert hardware(tmp_path / "uuid") == "4c4c4544-0042"
    (tmp_path / "uuid").write_bytes(b"\xff\xfe")
    assert hardware(tmp_path / "uuid") == hardware(tmp_path / "none") == hardware(tmp_path) == ""


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="--root"):
        HostPlace(tmp_path / "file" / "below").prepare()


def test_one_process_works_for_a_host(root: Path) -> None:
    held = HostPlace(root).lock()
    assert held is not None
    assert HostPlace(root).lock() is None
    held.close()


@pytest.mark.parametrize(
    ("machine_id", "indices", "environment"),
    [
        ("../../etc", [0], {}),
        ("mach_" + "A" * 61, [0], {}),
        ("mach_A", [-1], {}),
        ("mach_A", ["0"], {}),
        ("mach_A", [0], {"LD_PRELOAD": "/tmp/x.so"}),
        ("mach_A", [0], {"ALLPASS_URL": "two\nlines"}),
        ("mach_A", [0], {"ALLPASS_URL": "x" * 9000}),
        ("mach_A", [0], {"ALLPASS_URL": 1}),
    ],
)
def test_an_order_that_is_none_starts_nothing(
    root: Path, machine_id: str, indices: list[int], environment: dict[str, str]
) -> None:
    """Whatever a service says, no folder outside ours is written, and no variable but ours is set."""
    machines = HostMachines(root)
    with pytest.raises(ValueError, match=r"machine|started|GPUs"):
        machines.start(machine_id, indices, environment, root / "agent")
    assert not (root / "machines").exists()
    assert machines.reports() == []


def agent(root: Path, text: str) -> Path:
    path = root / "agent.py"
    path.write_text(text)
    path.chmod(0o755)
    return path


def wait_for_end(machines: HostMachines) -> None:
    until = time.monotonic() + 30
    while machines.live:
        machines.look()
        assert time.monotonic() < until


SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def test_a_machine_that_ends_by_itself_is_told_of_with_its_last_word(root: Path) -> None:
    machines = HostMachines(root)
    machines.start(MACHINE, [0], {}, agent(root, "import sys\nsys.exit('no way')\n"))
    wait_for_end(machines)
    (told,) = machines.reports()
    assert (told["state"], told["detail"]) == ("ended", "its agent ended with code 1: no way")
    assert "no way" in told["log"]
    assert not (root / "machines" / MACHINE / "root").exists(), "its disk is given back at once"
    machines.forget([])
    assert machines.reports() == []
    assert machines.knows(MACHINE), "an order that comes late starts it not again"


def test_machines_are_found_again_and_ended_by_whoever_comes_next(root: Path) -> None:
    first = HostMachines(root)
    first.start(MACHINE, [1], {}, agent(root, SLEEPS))
    first.release()
    second = HostMachines(root)
    assert [(one.machine_id, one.gpu_indices) for one in second.live] == [(MACHINE, [1])]
    assert second.end(MACHINE)
    assert second.reports()[0]["state"] == "ended"
    third = HostMachines(root)
    assert third.live == []


def test_a_machine_sees_its_own_gpus_alone(root: Path) -> None:
    machines = HostMachines(root)
    tells = "import os\nprint(os.environ['ALLPASS_AGENT_GPUS'], os.environ['ALLPASS_AGENT_SHARES_HOST'])\n"
    machines.start(MACHINE, [3, 1], {"ALLPASS_X": "y"}, agent(root, tells))
    wait_for_end(machines)
    assert machines.reports()[0]["log"] == "3,1 1\n"


def test_environments_are_of_one_project_and_models_are_kept_within_their_limit(root: Path) -> None:
    kept = Kept(root / "host")
    one, two = kept.environments("proj_1", root), kept.environments("proj_2", root)
    assert one != two
    assert kept.environments("../x", root / "own") == root / "own"
    machine = root / "machine"
    for number, name in enumerate(("old", "new")):
        folder = machine / "models" / (64 * "a") / f"models--org--{name}"
        folder.mkdir(parents=True)
        (folder / (64 * "0")).write_bytes(b"x" * 1000)
        os.utime(folder, (number, number))
    kept.gather_models(machine)
    other = root / "other"
    kept.lend_models(other)
    assert len(list((other / "models").glob("*/*/*"))) == 2
    kept.shrink(1500)
    assert [path.name for path in (root / "host" / "models").glob("*/*")] == ["models--org--new"]
    kept.clear()
    assert not (root / "host" / "models").exists()


def test_an_agent_that_is_kept_is_proven_before_it_is_used_again(root: Path) -> None:
    data = b"print('agent')"
    sha256 = hashlib.sha256(data).hexdigest()
    (root / f"agent-{sha256}.pyz").write_bytes(data)
    assert fetch_agent(Transport(), "http://127.0.0.1:1", sha256, root).read_bytes() == data
    (root / f"agent-{sha256}.pyz").write_bytes(b"something else")
    with pytest.raises(Exception, match="does not answer"):
        fetch_agent(Transport(), "http://127.0.0.1:1", sha256, root)
    with pytest.raises(ValueError, match="names no agent"):
        fetch_agent(Transport(), "file:///etc", sha256, root)


def test_the_program_is_one_file_that_needs_nothing_else(tmp_path: Path) -> None:
    """As hosts run it: isolated, without site-packages."""
    program = tmp_path / "host.pyz"
    program.write_bytes(packed_host())
    argv = [sys.executable, "-I", "-S", str(program), "--root", str(tmp_path / "root")]
    done = subprocess.run([*argv, "status"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "in no pool\n")
    done = subprocess.run(
        [*argv, "join", "http://127.0.0.1:1", "--cpu", "--keep-free-gb", "0"],
        input="apj_x", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: 127.0.0.1:1 does not answer")
    assert len(done.stderr.splitlines()) == 1
    assert packed_host() == packed_host()


@pytest.mark.parametrize("token", ["", "two words", "line\u00e9"])
def test_a_token_that_is_none_is_said_so(tmp_path: Path, token: str) -> None:
    program = tmp_path / "host.pyz"
    program.write_bytes(packed_host())
    argv = [sys.executable, "-I", "-S", str(program), "--root", str(tmp_path / "root"), "join", "http://127.0.0.1:1"]
    done = subprocess.run([*argv, "--cpu"], input=token, capture_output=True, text=True, check=False)
    assert "no token was given" in done.stderr


def test_facts_are_json(tmp_path: Path) -> None:
    assert json.loads(json.dumps(facts_of(tmp_path, "cpus for all", "", 0)))["for_all"] is True
