"""The guide's way for a laptop behind NAT, played between network namespaces: the laptop can call the small host, the
host and the internet cannot call the laptop, and SSH and Caddy are the real ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.documents import blocks_of

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "first-gpu.md"
HOST, MACHINE, INSIDE = "11.0.0.1", "11.0.0.2", "10.9.1.1"
_NEEDED = ("ip", "ssh", "sshd", "ssh-keygen", "caddy")
_PATIENCE_S = 60.0
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _missing() -> str:
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in _NEEDED if shutil.which(name, path=PATH) is None]
    return f"{', '.join(absent)} not installed (apt-get install openssh-server caddy iproute2)" if absent else ""


pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(bool(_missing()), reason=_missing() or "all is there")]


@dataclass
class World:
    """`laptop` and `machine` reach `host`, and never each other."""

    folder: Path
    mark: str = field(default_factory=lambda: f"ap{os.getpid() % 100000}")
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def name(self, place: str) -> str:
        return f"{self.mark}{place}"

    def run(self, place: str, *command: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
        environment |= {"PATH": PATH, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sdk")]), **more}
        return subprocess.run(
            ["ip", "netns", "exec", self.name(place), *command],
            env=environment, check=check, capture_output=True, text=True, timeout=200,
        )  # fmt: skip

    def start(self, place: str, *command: str) -> None:
        environment = {**os.environ, "PATH": PATH, "HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder)}
        with (self.folder / f"{Path(command[0]).name}.log").open("wb") as log:
            self.started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.name(place), *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def listens(self, place: str, port: int) -> None:
        until = time.monotonic() + _PATIENCE_S
        while f":{port} " not in self.run(place, "ss", "-ltn").stdout:
            assert time.monotonic() < until, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in self.folder.glob("*.log"))

    def doctor(self, url: str = f"http://{HOST}") -> dict[str, dict[str, str]]:
        """What it finds on the laptop, by check; a settings-only stack, so no account is asked."""
        asked = [sys.executable, "-c", _DOCTOR, "--json", "--quick", "--data-dir", str(self.folder / "data")]
        done = self.run("l", *asked, check=False, ALLPASS_PUBLIC_URL=url, ALLPASS_OBJECTS_URL=url)
        assert done.stdout.startswith("{"), done.stderr
        return {one["name"]: one for one in json.loads(done.stdout)["findings"]}


_DOCTOR = "import typer; from app.doctor.command import doctor; typer.run(doctor)"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    ip = shutil.which("ip", path=PATH) or "ip"
    try:
        for place in "lhm":
            subprocess.run([ip, "netns", "add", made.name(place)], check=True)
            made.run(place, "ip", "link", "set", "lo", "up")
        for place, inside, outside in (("l", "10.9.1.2", INSIDE), ("m", MACHINE, HOST)):
            ends = made.name(f"{place}0"), made.name(f"h{place}")
            subprocess.run(
                [ip, "link", "add", ends[0], "netns", made.name(place), "type", "veth",
                 "peer", "name", ends[1], "netns", made.name("h")], check=True,
            )  # fmt: skip
            for where, device, address in ((place, ends[0], inside), ("h", ends[1], outside)):
                made.run(where, "ip", "addr", "add", f"{address}/24", "dev", device)
                made.run(where, "ip", "link", "set", device, "up")
        made.run("l", "ip", "route", "add", "default", "via", INSIDE)
        yield made
    finally:
        for process in made.started:
            process.terminate()
        for process in made.started:
            process.wait(20)
        for place in "lhm":
            subprocess.run([ip, "netns", "del", made.name(place)], check=False)


def _serve_ssh(world: World) -> list[str]:
    """A host's own sshd, that lets in one key; the options with which the laptop calls it."""
    keys = {name: world.folder / name for name in ("host_key", "user_key")}
    for path in keys.values():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    allowed = world.folder / "allowed"
    allowed.write_text(keys["user_key"].with_suffix(".pub").read_text())
    allowed.chmod(0o600)
    config = world.folder / "sshd_config"
    config.write_text(
        f"ListenAddress {INSIDE}:2222\nHostKey {keys['host_key']}\nAuthorizedKeysFile {allowed}\n"
        "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    world.start("h", shutil.which("sshd", path=PATH) or "sshd", "-D", "-e", "-f", str(config))
    world.listens("h", 2222)
    return ["-p", "2222", "-i", str(keys["user_key"]), "-o", "StrictHostKeyChecking=no",
            "-o", f"UserKnownHostsFile={world.folder / 'known'}"]  # fmt: skip


def _words_of_the_guide() -> tuple[str, list[str]]:
    """The Caddyfile and the ssh command that a reader copies."""
    first, second = [one.text for one in blocks_of(GUIDE, "sh")][:2]
    caddyfile = first.partition("restart caddy\n")[2].rpartition("CADDY")[0]
    (ssh,) = [line for line in second.splitlines() if line.startswith("ssh ")]
    return caddyfile, ssh.split()[1:]


def _call_home(world: World) -> str:
    """What a rented machine gets from the address that it was given."""
    asked = (
        "import urllib.request, urllib.error\n"
        f"try: print(urllib.request.urlopen('http://{HOST}/agent/{'0' * 64}.pyz', timeout=10).status)\n"
        "except urllib.error.HTTPError as error: print(error.code, error.headers.get('x-request-id', '-')[:4])\n"
        "except OSError as error: print('unreached', error)\n"
    )
    return world.run("m", sys.executable, "-c", asked).stdout.strip()


def test_a_laptop_behind_nat_is_reached_as_the_guide_says(world: World) -> None:
    """Nothing leads there at first; with the host's Caddy a proxy without a service is found; with SSH all is well.
    When the line is cut, that is found, too."""
    caddyfile, ssh = _words_of_the_guide()
    assert _call_home(world).startswith("unreached")
    assert world.doctor()["public URL"]["code"] == "public_url_refused"

    options = _serve_ssh(world)
    (world.folder / "Caddyfile").write_text(
        "{\n    admin off\n    auto_https off\n}\n" + caddyfile.replace("gpu.example.com", f"http://{HOST}")
    )
    world.start("h", "caddy", "run", "--adapter", "caddyfile", "--config", str(world.folder / "Caddyfile"))
    world.listens("h", 80)
    assert world.doctor()["public URL"]["code"] == "public_url_nothing_behind"

    target = f"root@{INSIDE}"
    words = [target if word.startswith("root@") else word for word in ssh if word != "-f"]
    world.start("l", "ssh", *options, *words)
    world.listens("h", 7700)
    found = world.doctor()
    codes = {name: found[name]["code"] for name in ("public URL", "large reports", "store")}
    assert codes == {"public URL": "ok", "large reports": "ok", "store": "ok"}, world.logs()
    assert found["settings"]["message"].endswith("the doctor answered as API and store")

    line = world.started[-1]
    line.terminate()
    line.wait(20)
    assert world.doctor()["public URL"]["code"] == "public_url_nothing_behind"
    assert _call_home(world).startswith("502")
