"""From keys to the first job by the guide's own commands, and what wrong set-ups cost before they are refused.

    .venv/bin/python -m benchmarks.first_gpu

Reads the commands of "Behind NAT" out of docs/guides/first-gpu.md and types them in an empty home, in a network of
its own, against the emulated Vast.ai: the Caddyfile by Caddy where it is there, `doctor`, `up --real vast`, `smoke`.
SSH is left out, since both ends are one host here; tests/doctor/test_reverse_ssh.py plays it. Then 27 set-ups that are
wrong: the doctor (in this process) has to refuse each with the right code, and the company's own books
say what was spent. `value` is the number of commands; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from app.core.model.finding import Verdict
from app.doctor.situation import Situation, look_around
from app.doctor.visit import visit
from app.stack.emulated import Emulated, emulated
from app.stack.postgres import EmbeddedPostgres
from benchmarks.first_gpu_setups import API, HOST, PUBLIC, STORE, Setup, front, setups
from providers.emulators.companies import Company
from providers.emulators.serving import ADMIN_KEY_VARIABLE, KEY_VARIABLE, emulator_command

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guides" / "first-gpu.md"
GOAL = 6
_FAILED = 99
_OWN_NETWORK = "ALLPASS_BENCHMARK_OWN_NETWORK"
_VAST_PORT, _ADMIN_PORT = 7731, 7732


def main() -> int:
    """0: as few commands as the goal, and no dollar before a refusal."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    if not os.environ.get(_OWN_NETWORK):
        own = [] if os.geteuid() == 0 else ["--map-current-user", "--keep-caps"]
        command = ["unshare", "--net", *own, sys.executable, "-m", "benchmarks.first_gpu"]
        return subprocess.run(command, env={**os.environ, _OWN_NETWORK: "1"}, check=False).returncode
    for words in (["link", "set", "lo", "up"], ["addr", "add", f"{PUBLIC}/32", "dev", "lo"]):
        subprocess.run(["ip", *words], check=True)
    with tempfile.TemporaryDirectory(prefix="first-gpu-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # machines run user code as other users
        with _company(folder) as company:
            walked = Walk(folder, company).walk()
            refused = list(_refusals(folder, company))
    result = _result(walked, refused)
    print(json.dumps(result))
    return 0 if result["value"] <= GOAL and not result["detail"]["dollars_before_refusal"] else 1


def commands_of_the_guide() -> list[str]:
    """What is typed on the way from behind NAT, one command each."""
    section = re.split(r"^## ", GUIDE.read_text().partition("## Behind NAT\n")[2], flags=re.MULTILINE)[0]
    found: list[str] = []
    for block in re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL):
        lines = iter(block.splitlines())
        for line in lines:
            inside = re.search(r"<<'(\w+)'", line)
            rest = [line] if inside is None else [line, *iter(lines.__next__, inside[1]), inside[1]]
            found.append("\n".join(rest))
    return found


class Walk:
    """The commands, typed by somebody with a key and an empty home."""

    def __init__(self, folder: Path, company: Emulated) -> None:
        self._folder, self._company = folder, company
        self._home = folder / "home"
        self._home.mkdir(mode=0o711)
        self._environment = base_environment(self._home)
        self._running: list[subprocess.Popen[str]] = []
        self.done: list[str] = []
        self.problem = ""

    def walk(self) -> Walk:
        for command in commands_of_the_guide():
            begun = time.monotonic()
            problem = self._type(command)
            self.done.append(f"{time.monotonic() - begun:5.1f} s  {command.splitlines()[0]}")
            print(self.done[-1], flush=True)
            if problem:
                self.problem = f"{command.splitlines()[0]}: {problem}"
                break
        for process in reversed(self._running):
            process.terminate()
            process.wait(60)
        return self

    def _type(self, command: str) -> str:
        """What went wrong; nothing when it worked."""
        if command.startswith("apt-get"):
            return self._caddy(command)
        if command.startswith("ssh "):
            return ""
        if command.startswith("export "):
            self._export(command)
            return ""
        words = command.removeprefix("./allpass ").split()
        if words[0] == "up":
            return self._up(words)
        more = ["--yes", "--quick", "--data-dir", ".allpass"] if words[0] == "smoke" else []
        done = allpass([*words, *more], self._environment, self._home)
        return "" if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:]

    def _caddy(self, command: str) -> str:
        """The guide's own Caddyfile, where there is Caddy; else the ports are called directly."""
        self._environment["PUBLIC"] = API
        if shutil.which("caddy") is None:
            return ""
        file = self._folder / "Caddyfile"
        body = command.partition("\n")[2].rpartition("\n")[0].replace("gpu.example.com", f"http://{HOST}")
        file.write_text("{\n    admin off\n    auto_https off\n}\n" + body + "\n")
        words = ["caddy", "run", "--adapter", "caddyfile", "--config", str(file)]
        self._start(words, {**os.environ, "HOME": str(self._folder)})
        self._environment["PUBLIC"] = f"http://{HOST}"
        return "" if _answers(f"http://{HOST}") else "Caddy does not start"

    def _export(self, command: str) -> None:
        """The names of the guide, with the values of the emulated company and of this host."""
        names = re.findall(r"(ALLPASS_\w+)=", command)
        public = self._environment.pop("PUBLIC")
        objects = public if public != API else STORE
        values = right_settings(self._company) | {"ALLPASS_PUBLIC_URL": public, "ALLPASS_OBJECTS_URL": objects}
        assert set(names) <= set(values), names
        self._environment |= values

    def _up(self, words: list[str]) -> str:
        process = self._start([sys.executable, "-m", "allpass", *words], self._environment)
        until = time.monotonic() + 240
        while time.monotonic() < until and process.poll() is None:
            if _answers(f"{API}/healthz") and _answers(f"{API}/readyz"):
                return ""
            time.sleep(0.5)
        return (self._folder / "up.log").read_text()[-2000:]

    def _start(self, words: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        with (self._folder / ("up.log" if "up" in words else "caddy.log")).open("w") as log:
            process = subprocess.Popen(
                words, cwd=self._home, env=dict(environment), text=True, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._running.append(process)
        return process


def base_environment(home: Path) -> dict[str, str]:
    """A shell without any setting of Allpass."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
    path = os.pathsep.join([str(ROOT), str(ROOT / "sdk"), kept.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "PYTHONPATH": path}


def right_settings(company: Emulated) -> dict[str, str]:
    """With these nothing is wrong: the company is emulated here, so its machines are in this very network."""
    return {
        **company.settings(),
        "ALLPASS_PRIVATE_ADDRESSES": "true",
        "ALLPASS_PUBLIC_URL": API,
        "ALLPASS_OBJECTS_URL": STORE,
    }


def allpass(words: list[str], environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "allpass", *words], cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


def _answers(url: str) -> bool:
    """Whether anybody answers there within ten seconds, whatever it says below 500; a proxy may say more."""
    until = time.monotonic() + 10
    with httpx.Client(trust_env=False, timeout=5) as http:
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                if http.get(url).status_code != 503:
                    return True
            time.sleep(0.2)
    return False


@contextlib.contextmanager
def _company(folder: Path) -> Iterator[Emulated]:
    ports: dict[str, Any] = {"host": "0.0.0.0", "port": _VAST_PORT, "admin_port": _ADMIN_PORT}
    one = emulated(Company.VAST, folder / "vast", **ports, secret="benchmark", speed=0.0)
    command = emulator_command("vast", one.data_dir, speed=0.0, seed=1, **ports)
    keys = {KEY_VARIABLE: one.key, ADMIN_KEY_VARIABLE: one.admin_key}
    process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the emulated company does not start"
        yield replace(one, url=f"http://{HOST}:{_VAST_PORT}", admin_url=f"http://{HOST}:{_ADMIN_PORT}")
    finally:
        process.terminate()
        process.wait(30)


def _books(company: Emulated, method: str, path: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {company.admin_key}"}
    with httpx.Client(trust_env=False, timeout=30, headers=headers) as http:
        return http.request(method, f"{company.admin_url}/admin{path}", json=body).raise_for_status().json()


def _billed_micros(company: Emulated) -> int:
    return sum(int(one["bill"]["amount_micros"]) for one in _books(company, "GET", "/machines")["machines"])


def _refusals(folder: Path, company: Emulated) -> Iterator[dict[str, Any]]:
    """Each wrong set-up: what the doctor found, and what was spent meanwhile."""
    postgres = EmbeddedPostgres(folder / "postgres" / "data")
    postgres.start()
    try:
        with contextlib.ExitStack() as stack:
            habits = {habit: (habit, API) for habit in ("login", "redirect", "small")}
            habits |= {f"store {habit}": (habit, STORE) for habit in ("small", "changes", "whole")}
            habits |= {"down": ("none", f"http://{HOST}:9"), "late": ("late", company.url)}
            fronts = {name: stack.enter_context(front(*how)) for name, how in habits.items()}
            right = _try(folder, company, Setup("nothing wrong", "ok"))
            yield {**right, "right": True}
            for one in setups(fronts, _VAST_PORT, postgres.url()):
                yield _try(folder, company, one)
    finally:
        postgres.stop()


def _try(folder: Path, company: Emulated, setup: Setup) -> dict[str, Any]:
    _books(company, "POST", "/switches", {"credit_micros": 0})
    before = _billed_micros(company)
    credit = before + setup.credit_micros if setup.credit_micros else 0
    _books(company, "POST", "/switches", {"credit_micros": credit})
    home = folder / "another-home"
    home.mkdir(exist_ok=True)
    given = right_settings(company) | setup.settings
    environment = base_environment(home) | {name: value for name, value in given.items() if value}
    around = look_around(home / ".allpass", environment)
    found_by_it = asyncio.run(visit(around, quick=True)).findings if isinstance(around, Situation) else around
    codes = [one.code for one in found_by_it if one.verdict is Verdict.FAIL]
    found = {
        "setup": setup.name,
        "codes": codes,
        "refused": setup.code in codes,
        "dollars": (_billed_micros(company) - before) / 1e6,
    }
    print(f"{setup.name:<34} {', '.join(codes) or 'ok'}", flush=True)
    return found


def _result(walked: Walk, refused: list[dict[str, Any]]) -> dict[str, Any]:
    right, *wrong = refused
    missed = [one for one in wrong if not one["refused"]]
    well = not walked.problem and not right["codes"] and not missed
    return {
        "name": "first_gpu",
        "value": len(walked.done) if well else _FAILED,
        "goal": GOAL,
        "unit": "commands",
        "detail": {
            "commands": walked.done,
            "problem": walked.problem,
            "left_out": "ssh (both ends are one host here; played by tests/doctor/test_reverse_ssh.py)",
            "wrong_setups": len(wrong),
            "refused": len(wrong) - len(missed),
            "dollars_before_refusal": sum(one["dollars"] for one in wrong),
            "a_right_one_is_refused_for": right["codes"],
            "missed": missed,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
