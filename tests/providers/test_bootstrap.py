"""The bootstrap script, run by real shells against a real server, with a tiny program in the agent's place."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.errors import InvalidRequest
from app.ports.provider import MachineRequest
from providers.bootstrap import LARGEST_BYTES, bootstrap_line, bootstrap_script
from tests.ports import NOBODYS_URL, reserved_port

NOT_FETCHED, NO_PYTHON = 4, 2
_PATIENCE_S = 60
SHELLS = [shell for shell in ("sh", "dash", "bash", "busybox sh") if shutil.which(shell.split()[0])]


def zipapp(source: str) -> bytes:
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("__main__.py", source)
    return buffer.getvalue()


AGENT = zipapp(
    "import os, sys\nprint('agent', os.environ['ALLPASS_JOIN_TOKEN'], os.environ['ALLPASS_AGENT_ROOT'], "
    "sys.flags.isolated, sys.flags.no_site)"
)
EVIL = zipapp("print('evil')")
SHA256 = hashlib.sha256(AGENT).hexdigest()


@dataclass
class Server:
    """Serves the agent. `answers` are used up one per request: (status, body, length that is announced)."""

    url: str = ""
    answers: list[tuple[int, bytes, int]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def answer(self) -> tuple[int, bytes, int]:
        return self.answers.pop(0) if self.answers else (200, AGENT, len(AGENT))


def start(server: Server, port: int = 0) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            return

        def do_GET(self) -> None:
            server.paths.append(self.path)
            status, body, length = server.answer()
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

    listening = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.url = f"http://127.0.0.1:{listening.server_address[1]}"
    threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return listening


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    listening = start(server)
    yield server
    listening.shutdown()
    listening.server_close()


def request(url: str, **more: str) -> MachineRequest:
    offer = Offer("vast", "o1", Tier.MARKETPLACE, "A100", 1, 40 * 2**30, 8, 64 * 2**30, Money.usd("0.70"), 30_000)
    values = {"ALLPASS_URL": url, "ALLPASS_AGENT_SHA256": SHA256, "ALLPASS_JOIN_TOKEN": "j" * 64} | more
    return MachineRequest("node_1", offer, offer.price_per_hour, "image", tuple(values.items()))


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the script the way Modal does (`sh -c`), on a disk of its own."""

    def run(script: str, shell: str = "sh", **environ: str) -> subprocess.Popen[str]:
        base = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ALLPASS_AGENT_ROOT": str(tmp_path / "root"),
            "ALLPASS_BOOTSTRAP_LIMIT_S": "60",
        }
        command = [shutil.which(shell.split(maxsplit=1)[0]) or shell, *shell.split()[1:], "-c", script]
        return subprocess.Popen(
            command, env=base | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )

    return run


Run = Callable[..., "subprocess.Popen[str]"]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=_PATIENCE_S)
    return process.returncode, out, err


@pytest.mark.parametrize("shell", SHELLS)
def test_a_machine_becomes_the_agent(server: Server, machine: Run, tmp_path: Path, shell: str) -> None:
    """Any POSIX shell fetches the one program and turns into it, with what the order said in its environment."""
    process = machine(bootstrap_script(request(server.url)), shell)
    code, out, err = finish(process)
    assert (code, out, err) == (0, f"agent {'j' * 64} {tmp_path / 'root'} 1 1\n", "")
    assert server.paths == [f"/agent/{SHA256}.pyz"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_container_becomes_the_agent_on_one_line(server: Server, machine: Run, tmp_path: Path, shell: str) -> None:
    """The same in any POSIX shell, whatever the values hold; nothing is left of how the line was written."""
    odd = request(server.url, ALLPASS_ODD='it\'s \\n 100% $HOME `id` "x" \\\\ \\0101')
    line = bootstrap_line(odd)
    assert "\n" not in line
    code, out, err = finish(machine(line, shell))
    assert (code, out, err) == (0, f"agent {'j' * 64} {tmp_path / 'root'} 1 1\n", "")
    told = finish(machine(line.replace('eval "', 'printf %s "'), shell))[1]
    assert told == _without_service(bootstrap_script(odd)).rstrip("\n")


def _without_service(script: str) -> str:
    head, _, rest = script.partition("case $0 in\n")
    return head + rest.partition("esac\n")[2]


def test_other_bytes_are_never_executed(server: Server, machine: Run, tmp_path: Path) -> None:
    """A wrong content is refused as often as it comes, is not kept, and each refusal says which hash was had."""
    server.answers = [(200, EVIL, len(EVIL))] * 2
    process = machine(bootstrap_script(request(server.url)))
    assert process.stderr is not None
    for _ in range(2):
        assert hashlib.sha256(EVIL).hexdigest() in process.stderr.readline()
        assert list((tmp_path / "root").glob("*.pyz")) == []
    code, out, _ = finish(process)  # with what it is given at last
    assert (code, out.partition(" ")[0], len(server.paths)) == (0, "agent", 3)


def test_bytes_that_stay_wrong_are_given_up(server: Server, machine: Run, tmp_path: Path) -> None:
    """When the time is up; nothing is left, and the end says which hash was had."""
    server.answers = [(200, EVIL, len(EVIL))] * 100
    code, out, err = finish(machine(bootstrap_script(request(server.url)), ALLPASS_BOOTSTRAP_LIMIT_S="0.1"))
    assert (code, out) == (NOT_FETCHED, "")
    assert hashlib.sha256(EVIL).hexdigest() in err
    assert list((tmp_path / "root").iterdir()) == []


def test_what_goes_wrong_on_the_way_is_tried_again(server: Server, machine: Run) -> None:
    """A download that breaks off, an answer of a server of another release."""
    half = AGENT[: len(AGENT) // 2]
    server.answers = [(200, half, len(AGENT)), (404, b"no", 2)]
    code, out, err = finish(machine(bootstrap_script(request(server.url))))
    assert code == 0
    assert out.startswith("agent ")
    assert len(server.paths) == 3
    assert err.count("no agent from") == 2
    assert f"got {len(half)} bytes" in err


def test_a_server_that_is_down_is_waited_for(machine: Run) -> None:
    """The machine may be there before the server is back; nothing has to be started again."""
    with reserved_port() as port:
        process = machine(bootstrap_script(request(f"http://127.0.0.1:{port}")))
        assert process.stderr is not None
        assert "refused" in process.stderr.readline()
        listening = start(Server(), port)
        try:
            code, out, _ = finish(process)
        finally:
            listening.shutdown()
            listening.server_close()
    assert code == 0
    assert out.startswith("agent ")


def test_waiting_has_a_limit(machine: Run) -> None:
    """A machine that cannot reach us ends by itself, and says why."""
    code, out, err = finish(machine(bootstrap_script(request(NOBODYS_URL)), ALLPASS_BOOTSTRAP_LIMIT_S="0.1"))
    assert (code, out) == (NOT_FETCHED, "")
    assert NOBODYS_URL in err


def test_a_restart_uses_what_is_on_the_disk(server: Server, machine: Run, tmp_path: Path) -> None:
    """Proven anew: the kept program runs without the server, a changed one is fetched again."""
    script = bootstrap_script(request(server.url))
    assert finish(machine(script))[0] == 0
    assert finish(machine(script))[0] == 0
    assert len(server.paths) == 1
    (kept,) = (tmp_path / "root").iterdir()
    kept.write_bytes(EVIL)
    code, out, _ = finish(machine(script))
    assert code == 0
    assert out.startswith("agent ")
    assert len(server.paths) == 2


def test_a_machine_without_python_says_so(machine: Run, tmp_path: Path) -> None:
    """And one whose only Python is too old as well; both at once, not after a limit."""
    (tmp_path / "bin").mkdir()
    script = bootstrap_script(request("http://127.0.0.1:9"))
    code, out, err = finish(machine(script, PATH=str(tmp_path / "bin")))
    assert (code, out) == (NO_PYTHON, "")
    assert "Python 3.9" in err
    old = tmp_path / "bin" / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    code, _, err = finish(machine(script, PATH=str(tmp_path / "bin")))
    assert code == NO_PYTHON
    assert "Python 3.9" in err


def test_a_newer_python_under_another_name_is_found(server: Server, machine: Run, tmp_path: Path) -> None:
    """Where `python3` is too old."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\nexit 1\n")
    (folder / "python3").chmod(0o755)
    (folder / "python3.11").symlink_to(Path(sys.executable).resolve())
    code, out, _ = finish(machine(bootstrap_script(request(server.url)), PATH=str(folder)))
    assert code == 0
    assert out.startswith("agent ")


def test_words_of_the_shell_in_a_value_stay_words(server: Server, machine: Run, tmp_path: Path) -> None:
    """Nothing that is set on a machine is ever executed there."""
    odd = "'; touch pwned; $(touch pwned) `touch pwned` \\ \" @FETCH@"
    _, out, _ = finish(machine(bootstrap_script(request(server.url, ALLPASS_JOIN_TOKEN=odd))))
    assert out.startswith(f"agent {odd} ")
    assert not (tmp_path / "pwned").exists()


def test_cloud_init_leaves_a_unit_that_brings_the_agent_back(server: Server, tmp_path: Path) -> None:
    """Run once from cloud-init's folder, it installs itself privately and hands over to systemd; what the unit starts
    is the agent. The paths of the system lie in a folder here, and systemctl only notes what it is asked."""
    script = bootstrap_script(request(server.url))
    for path in ("/var/lib/cloud", "/var/lib/allpass", "/etc/systemd/system"):
        script = script.replace(path, f"{tmp_path}{path}")
    part = tmp_path / "var/lib/cloud/instance/scripts/part-001"
    for folder in (part.parent, tmp_path / "etc/systemd/system", tmp_path / "bin"):
        folder.mkdir(parents=True)
    part.write_text(script)
    part.chmod(0o700)
    systemctl = tmp_path / "bin/systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n')
    systemctl.chmod(0o755)
    path = f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([str(part)], env={"PATH": path}, check=True, timeout=_PATIENCE_S)
    assert (tmp_path / "asked").read_text().splitlines() == [
        "daemon-reload",
        "enable allpass-agent",
        "--no-block restart allpass-agent",
    ]
    assert server.paths == []
    unit = (tmp_path / "etc/systemd/system/allpass-agent.service").read_text()
    assert "Restart=on-failure" in unit
    assert "RestartPreventExitStatus=2 3" in unit
    installed = tmp_path / "var/lib/allpass/bootstrap"
    assert installed.stat().st_mode & 0o077 == 0, "it holds the join token"
    (command,) = (line.removeprefix("ExecStart=") for line in unit.splitlines() if line.startswith("ExecStart="))
    assert command == f"/bin/sh {installed}"
    # systemd gives no HOME
    environ = {"PATH": path, "ALLPASS_AGENT_ROOT": str(installed.parent)}
    started = subprocess.run(
        command.split(), env=environ, capture_output=True, text=True, timeout=_PATIENCE_S, check=True
    )
    assert started.stdout.startswith("agent ")


def test_it_fits_where_the_least_room_is() -> None:
    """With the longest address that can travel and long tokens, Vast.ai still takes it; beyond, it says so."""
    longest = "https://" + "a" * 240 + ".example"
    for written in (bootstrap_script, bootstrap_line):
        assert len(written(request(longest, ALLPASS_JOIN_TOKEN="j" * 256)).encode()) <= LARGEST_BYTES
    with pytest.raises(InvalidRequest, match=str(LARGEST_BYTES)):
        bootstrap_script(request(longest, ALLPASS_JOIN_TOKEN="j" * 2000))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"ALLPASS_URL": ""}, "ALLPASS_URL"),
        ({"ALLPASS_URL": "file:///etc/passwd"}, "http"),
        ({"ALLPASS_AGENT_SHA256": "main"}, "64 hex"),
        ({"PATH": "/evil"}, "PATH"),
        ({"ALLPASS_X;reboot": "1"}, "reboot"),
        ({"ALLPASS_JOIN_TOKEN": "a\nb"}, "ALLPASS_JOIN_TOKEN"),
    ],
)
def test_what_cannot_be_set_is_refused(changed: dict[str, str], named: str) -> None:
    """Before anything is rented with it."""
    with pytest.raises(InvalidRequest, match=named):
        bootstrap_script(request("https://allpass.example", **changed))


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    """Neither errors nor style, for a POSIX shell."""
    file = tmp_path / "bootstrap.sh"
    file.write_text(bootstrap_script(request("https://allpass.example")))
    checker = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([checker, "-s", "sh", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
