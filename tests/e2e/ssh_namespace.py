"""A host of its own for ssh: a network namespace with a real sshd, which reaches a service on this host's loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e.service import until

SSHD = "/usr/sbin/sshd"
MISSING = next(
    (
        what
        for what, there in (
            ("root, for network namespaces", os.geteuid() == 0),
            ("ip (iproute2)", shutil.which("ip") is not None),
            ("sshd (openssh-server)", Path(SSHD).exists()),
            ("ssh (openssh-client)", shutil.which("ssh") is not None),
        )
        if not there
    ),
    None,
)
# `in` the namespace: what arrives at a port of its loopback goes to the socket of the same number in a folder. Out here
# (`out`): what arrives at that socket goes to the port.
_RELAY = """
import socket, sys, threading
way, folder, *ports = sys.argv[1:]
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def listen(port):
    if way == "in":
        return socket.create_server(("127.0.0.1", int(port)))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/{port}")
    listener.listen(64)
    return listener
def connect(port):
    if way == "out":
        return socket.create_connection(("127.0.0.1", int(port)))
    far = socket.socket(socket.AF_UNIX)
    far.connect(f"{folder}/{port}")
    return far
def serve(port):
    listener = listen(port)
    while True:
        near, _ = listener.accept()
        try:
            far = connect(port)
        except OSError:
            near.close()
            continue
        for pair in ((near, far), (far, near)):
            threading.Thread(target=pump, args=pair, daemon=True).start()
for port in ports:
    threading.Thread(target=serve, args=(port,)).start()
"""


@contextlib.contextmanager
def ssh_host(folder: Path, number: int, ports: Sequence[int]) -> Iterator[tuple[str, str]]:
    """What ssh is told (`root@ADDRESS`), and the ssh to use. `ports`: of the loopback here, found on that there."""
    name, near, far = namespace_of(number), f"10.213.{number}.1", f"10.213.{number}.2"
    link = f"ap{os.getpid() % 100_000}n{number}"
    running: list[subprocess.Popen[bytes]] = []
    _ip("netns", "add", name)
    try:
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("addr", "add", f"{near}/30", "dev", link)
        _ip("link", "set", link, "up")
        _ip("-n", name, "addr", "add", f"{far}/30", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        relay = [sys.executable, "-c", _RELAY]
        running.append(subprocess.Popen([*relay, "out", str(folder), *map(str, ports)]))
        running.append(subprocess.Popen(["ip", "netns", "exec", name, *relay, "in", str(folder), *map(str, ports)]))
        running.append(subprocess.Popen(["ip", "netns", "exec", name, SSHD, "-D", "-e", "-f", str(_sshd(folder, far))]))
        until("sshd", lambda: _answers(far))
        yield f"root@{far}", f"ssh -F {_client(folder)}"
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(10)
        _end_all(name)
        _ip("netns", "del", name)


def namespace_of(number: int) -> str:
    return f"allpass-{os.getpid()}-{number}"


@contextlib.contextmanager
def private_network(first: int, second: int) -> Iterator[tuple[str, str]]:
    """A network between two of these hosts, on which their way out leads; their addresses there."""
    ends = [(namespace_of(first), "priv0", "10.214.0.1"), (namespace_of(second), "priv0", "10.214.0.2")]
    (here, device, _), (there, far_device, _) = ends
    _ip("link", "add", device, "netns", here, "type", "veth", "peer", "name", far_device, "netns", there)
    try:
        for name, link, address in ends:
            _ip("-n", name, "addr", "add", f"{address}/30", "dev", link)
            _ip("-n", name, "link", "set", link, "up")
            _ip("-n", name, "route", "add", "default", "dev", link)
        yield ends[0][2], ends[1][2]
    finally:
        _ip("-n", here, "link", "del", device)


def _end_all(name: str) -> None:
    """Whatever was started there, and has not left: it would keep the network alive."""
    for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True).stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _sshd(folder: Path, address: str) -> Path:
    Path("/run/sshd").mkdir(exist_ok=True)  # as the package's own unit makes it
    for key in ("host_key", "client_key"):
        if not (folder / key).exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copyfile(folder / "client_key.pub", folder / "authorized_keys")
    config = folder / "sshd_config"
    lines = [
        f"ListenAddress {address}:2222",
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/authorized_keys",
    ]
    lines += ["UsePAM no", "StrictModes no", "PermitRootLogin yes", "PasswordAuthentication no", "PidFile none"]
    config.write_text("\n".join(lines) + "\n")
    return config


def _client(folder: Path) -> Path:
    config = folder / "ssh_config"
    lines = ["Host *", "Port 2222", f"IdentityFile {folder}/client_key", f"UserKnownHostsFile {folder}/known_hosts"]
    config.write_text("\n".join([*lines, "StrictHostKeyChecking accept-new", "IdentitiesOnly yes"]) + "\n")
    return config


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 2222), timeout=1):
            return True
    except OSError:
        return False


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
