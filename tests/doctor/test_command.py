"""`allpass doctor` from the outside: exit code, JSON, the next command, and no secret in any of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import NOBODYS_URL, reserved_pair
from tests.providers.vast_emulator import EmulatedVast

ROOT = Path(__file__).resolve().parents[2]
_CALL = "import typer; from app.doctor.command import doctor; typer.run(doctor)"
pytestmark = pytest.mark.timeout(180)


def doctor(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """In a shell with these settings and no other."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
    path = os.pathsep.join([str(ROOT), str(ROOT / "sdk")])
    command = [sys.executable, "-c", _CALL, "--quick", "--data-dir", str(folder / "data"), *words]
    return subprocess.run(
        command, env={**kept, "PYTHONPATH": path, **settings}, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def vast(tmp_path: Path) -> Any:
    emulated = EmulatedVast.start(tmp_path / "vast", speed=0.0)
    yield emulated
    emulated.admin.close()
    emulated.api.close()
    emulated.process.terminate()
    emulated.process.wait(30)
    if emulated.process.stdout:
        emulated.process.stdout.close()


@pytest.fixture
def port() -> Iterator[int]:
    """Of a stack that nobody has started; that of its store is the next."""
    with reserved_pair() as reserved:
        yield reserved


def shell(vast: EmulatedVast, port: int, **more: str) -> dict[str, str]:
    """What a stack would be started with that rents from the emulated company."""
    own = {"ALLPASS_PORT": str(port), "ALLPASS_PUBLIC_URL": f"http://127.0.0.1:{port}"}
    store = {"ALLPASS_OBJECTS_URL": f"http://127.0.0.1:{port + 1}"}
    return {**own, **store, "ALLPASS_VAST_URL": vast.url, "ALLPASS_VAST_API_KEY": "vast-key", **more}


def test_a_set_up_without_fault_leads_to_the_next_command(vast: EmulatedVast, port: int, tmp_path: Path) -> None:
    """Nobody serves yet, so the doctor stands in; nothing is made, and exit code 0 says that it is well."""
    done = doctor(tmp_path, "--json", **shell(vast, port))
    told = json.loads(done.stdout)
    assert (done.returncode, told["healthy"]) == (0, True), done.stdout
    assert told["next"].startswith("allpass up --real vast")
    codes = {one["name"]: one["code"] for one in told["findings"]}
    assert {codes[name] for name in ("account vast", "public URL", "large reports", "store", "database")} == {"ok"}
    assert not (tmp_path / "data").exists()


def test_one_thing_that_is_wrong_hides_nothing_else(vast: EmulatedVast, port: int, tmp_path: Path) -> None:
    """A refused key, and an address where nobody answers: both are told, with the rest; exit code 1."""
    wrong = shell(vast, port, ALLPASS_VAST_API_KEY="sesame-of-another", ALLPASS_PUBLIC_URL=NOBODYS_URL)
    done = doctor(tmp_path, "--json", **wrong)
    codes = {one["name"]: one["code"] for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert codes["account vast"] == "provider_auth_failed"
    assert codes["public URL"] == "public_url_refused"
    assert codes["store"] == "ok"
    assert "sesame" not in done.stdout + done.stderr


def test_an_account_without_credit_is_found_before_a_machine_is(vast: EmulatedVast, port: int, tmp_path: Path) -> None:
    """Vast.ai tells what is left."""
    vast.admin.post("/admin/switches", json={"credit_micros": 1}).raise_for_status()
    codes = {one["code"] for one in json.loads(doctor(tmp_path, "--json", **shell(vast, port)).stdout)["findings"]}
    assert "account_no_credit" in codes


def test_people_read_what_to_do(port: int, tmp_path: Path) -> None:
    """A line for each, the fix below it, and the next command at the end."""
    done = doctor(tmp_path, ALLPASS_PORT=str(port))
    assert done.returncode == 1
    assert "fail account          no account of a company is set" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("next: ")


def test_settings_that_cannot_be_read_are_said_without_their_values(tmp_path: Path) -> None:
    """Neither the wrong one's, nor that of any other."""
    settings = {"ALLPASS_DATABASE_URL": "postgresql://a:sesame@h/d", "ALLPASS_SECRET_KEY": "sesame" * 8}
    done = doctor(tmp_path, "--json", **settings, ALLPASS_POLL_S="sesame")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert {one["code"] for one in told["findings"]} == {"setting_wrong"}
    assert "sesame" not in done.stdout + done.stderr
