"""The package of the guide "write a provider in a day": installed, examined, and rented from by a whole stack."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from allpass.cli.main import app
from app.stack.supervisor import Stack, StackOptions
from tests.documents import blocks_of
from tests.stack.up_process import until

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guides" / "write-a-provider.md"
# What a provider's author has: pytest, and none of our plugins.
BARE = [
    word
    for name in ("asyncio", "anyio", "rerunfailures", "xdist", "timeout", "hypothesis")
    for word in ("-p", f"no:{name}")
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the guide, in a folder of their own."""
    folder = tmp_path_factory.mktemp("shed")
    (project,) = blocks_of(GUIDE, "toml")
    adapter, exam = blocks_of(GUIDE, "python")
    (folder / "pyproject.toml").write_text(project.text)
    (folder / "allpass_shed.py").write_text(adapter.text)
    (folder / "test_shed.py").write_text(exam.text)
    return folder


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has put it, with a broken package beside it."""
    target = tmp_path_factory.mktemp("installed")
    install = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*install, "--target", str(target), str(package)], check=True, timeout=120)
    info = target / "allpass_hut-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: allpass-hut\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[allpass.providers]\nhut = allpass_hut:PLUGIN\n")
    (target / "allpass_hut.py").write_text("import no_such_module\n")
    return target


def sit(folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT), str(ROOT / "sdk")])}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *BARE, "test_shed.py"]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=150)


def test_it_passes_the_exam_with_nothing_but_pytest(package: Path, installed: Path) -> None:
    """Every question is asked; only those about tiers that it does not have are skipped."""
    done = sit(package, installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "28 passed, 4 skipped" in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "question"),
    [
        ('raise errors.OutcomeUnknown(f"shed did', 'raise errors.Transient(f"shed did', "lost_answer_to_create"),
        ('if one.label and is_id(one.label, "node")', "", "only_our_machines"),
        ('"most_micros_per_hour": request.max_price_per_hour.micros', '"most_micros_per_hour": 10**9', "higher_price"),
        ("412: errors.PriceMoved", "412: errors.NoCapacity", "higher_price"),
    ],
)
def test_the_exam_finds_what_would_cost_money(
    package: Path, tmp_path: Path, right: str, wrong: str, question: str
) -> None:
    """A lost answer taken for none, a neighbour's machine taken for ours, a price that nobody agreed to."""
    adapter = (package / "allpass_shed.py").read_text()
    assert adapter.count(right) == 1
    (tmp_path / "allpass_shed.py").write_text(adapter.replace(right, wrong))
    (tmp_path / "test_shed.py").write_text((package / "test_shed.py").read_text())
    done = sit(tmp_path, tmp_path)
    assert done.returncode == 1
    assert question in done.stdout.partition("short test summary")[2], done.stdout


@pytest.fixture
def company(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The company of the guide on a port of this host."""
    monkeypatch.syspath_prepend(str(package))
    import test_shed

    shed = test_shed.Shed()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = httpx.Request(self.command, f"http://shed{self.path}", headers=dict(self.headers), content=body)
            response = asyncio.run(shed.answer(request))
            self.send_response(response.status_code)
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.stack
@pytest.mark.timeout(300)
def test_its_offers_stand_beside_the_others(
    company: str, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`allpass offers` shows what it rents, `allpass providers` what is wrong with the broken one; ours work on."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(ROOT), str(ROOT / "sdk")]))
    given = {
        "ALLPASS_SHED_API_KEY": "right",
        "ALLPASS_SHED_URL": company,
        "ALLPASS_PRIVATE_ADDRESSES": "true",
        "ALLPASS_PRICES_S": "1",
    }
    stack = Stack(StackOptions(tmp_path / "data", port=0, cloud_speed=0.0, settings=given), tell=lambda _: None)
    stack.start()
    try:
        client = json.loads(stack.layout.client_file.read_text())
        environ = {"ALLPASS_URL": client["url"], "ALLPASS_API_KEY": client["api_key"], "COLUMNS": "200"}

        def told(*words: str) -> Any:
            done = CliRunner().invoke(app, [*words, "--json"], env=environ)
            assert done.exit_code == 0, done.output
            return done.stdout

        until("its offer", lambda: '"shed"' in told("offers", "--count", "500"))
        until("the word on the broken one", lambda: "no_such_module" in told("providers"))
        assert '"local"' in told("offers", "--count", "500")
        assert "package allpass-hut" in told("providers")
    finally:
        stack.stop()
