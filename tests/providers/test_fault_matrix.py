"""The fault matrix itself: complete, made of faults that the emulators know, and able to find something wrong."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.plugins import found_providers
from benchmarks.fault_ground import CREATE_GRACE_S, GRACE_S, ORPHAN_GRACE_S
from benchmarks.fault_play import machines_together
from benchmarks.fault_row import Outage, Row
from benchmarks.fault_rows import COMPANIES, matrix, sample
from benchmarks.fault_slurm import STRIKES
from benchmarks.fault_way import WAY_OPS, HostWay
from providers.emulators.faults import FaultScript
from providers.emulators.kubernetes.emulation import EMULATION as KUBERNETES
from providers.emulators.lambda_cloud.emulation import EMULATION as LAMBDA
from providers.emulators.modal.emulation import EMULATION as MODAL
from providers.emulators.runpod.emulation import EMULATION as RUNPOD
from providers.emulators.serving import switches_of
from providers.emulators.vast.company import VAST_EMULATION as VAST
from tests.ports import NOBODYS_URL

_EMULATIONS = {"modal": MODAL, "vast": VAST, "lambda": LAMBDA, "runpod": RUNPOD, "kubernetes": KUBERNETES}
_GRACE_MS = round(GRACE_S * 1000)


def test_every_fault_meets_every_operation_with_and_without_a_crash() -> None:
    """Six generic faults x four operations x the emulated companies, and each company's own, all of them twice."""
    rows = matrix()
    assert len({row.key for row in rows}) == len(rows)
    for company, op, crash in itertools.product(COMPANIES, ("create", "get", "list", "terminate"), (False, True)):
        assert sum((row.company, row.op, row.crash) == (company, op, crash) for row in rows) == 6
    for company, crash in itertools.product(COMPANIES, (False, True)):
        assert sum((row.company, row.op, row.crash) == (company, "own", crash) for row in rows) >= 8


@pytest.mark.parametrize("row", matrix(), ids=lambda row: row.key)
def test_the_emulator_knows_what_a_row_asks_for(row: Any) -> None:
    """Every fault is accepted by the company's script, every switch exists, and something happens in every row."""
    if row.company not in _EMULATIONS:
        assert_own_know(row)
        return
    emulation = _EMULATIONS[row.company]
    script = FaultScript(emulation.ops, emulation.kinds)
    for fault in row.faults:
        script.parse(fault)
    switches_of(emulation, ()).set(row.switches)
    assert row.faults or row.action or row.outage or row.switches


@pytest.mark.parametrize("row", [row for row in matrix() if row.outage is not None], ids=lambda row: row.key)
def test_an_outage_is_known_wherever_it_strikes_and_outlasts_every_grace(row: Any) -> None:
    """Also to the other companies, where it is everywhere; every setting that it takes away is one of the server's."""
    outage = row.outage
    for company in COMPANIES if outage.everywhere else (row.company,):
        if company not in _EMULATIONS:
            assert_own_know(row)
            continue
        emulation = _EMULATIONS[company]
        for fault in outage.faults:
            FaultScript(emulation.ops, emulation.kinds).parse(fault)
        switches_of(emulation, ()).set(outage.switches)
    assert outage.lasts_s > 2 * max(CREATE_GRACE_S, ORPHAN_GRACE_S)
    plugins = [(one.prefix, one.plugin) for one in found_providers() if one.plugin is not None]
    settings = {f"{prefix}{name.upper()}" for prefix, plugin in plugins for name in plugin.settings.model_fields}
    assert {*outage.settings, *row.settings} <= settings
    assert (
        outage.faults
        or outage.switches
        or outage.settings
        or outage.paused
        or outage.then
        or row.action
        or row.switches
    )
    assert row.alone or not (outage.everywhere or outage.settings or outage.paused or row.settings)


def test_a_sample_is_drawn_by_its_seed() -> None:
    """The same seed gives the same rows, in the order of the matrix; without a number it is all of them."""
    rows = matrix()
    drawn = sample(rows, 12, seed=3)
    assert len(drawn) == 12
    assert drawn == sample(rows, 12, seed=3) != sample(rows, 12, seed=4)
    assert [row for row in rows if row in drawn] == drawn
    assert sample(rows, None, seed=3) == rows


@pytest.mark.parametrize(
    ("label", "created_ms", "ended_ms", "pairs"),
    [
        ("node_1", 1_000, 2 * _GRACE_MS, 1),  # both lived on
        ("node_1", 1_000, 1_000 + _GRACE_MS, 0),  # one was ended within the grace time
        ("node_1", 9 * _GRACE_MS, None, 0),  # one after the other
        ("node_2", 1_000, 2 * _GRACE_MS, 0),  # of another node
    ],
)
def test_two_machines_of_one_node_are_found(label: str, created_ms: int, ended_ms: int | None, pairs: int) -> None:
    """They count when they lived beside each other for longer than the grace time."""
    first = {"ref": "a", "label": "node_1", "created_ms": 0, "ended_ms": 3 * _GRACE_MS}
    second = {"ref": "b", "label": label, "created_ms": created_ms, "ended_ms": ended_ms}
    assert len(list(machines_together([first, second]))) == pairs


def assert_own_know(row: Row) -> None:
    """What goes wrong with hosts and with Slurm goes by words that their books know."""
    outage = row.outage or Outage(0)
    for fault in (*row.faults, *outage.faults):
        if row.company == "slurm":
            assert fault["kind"] in STRIKES
        else:
            FaultScript(WAY_OPS).parse(fault)
    assert {*row.switches, *outage.switches} <= {"is_full", "away"}
    assert row.faults or row.action or row.outage or row.switches


def test_a_disk_is_full_for_one_process_while_a_file_is_there(tmp_path: Path) -> None:
    """It writes nothing below the folder then, reads as before, and writes again when the file has gone."""
    code = """
import errno, sys
from pathlib import Path
from benchmarks.full_disk import fill_when
folder, flag = Path(sys.argv[1], "disk"), Path(sys.argv[1], "flag")
folder.mkdir()
(folder / "kept").write_text("kept")
fill_when(flag, folder)
(folder / "new").write_text("fits")
flag.touch()
for write in (lambda: (folder / "more").write_text("no"), (folder / "sub").mkdir):
    try:
        write()
    except OSError as error:
        assert error.errno == errno.ENOSPC
    else:
        raise SystemExit("it was written")
assert (folder / "kept").read_text() == "kept"
flag.unlink()
(folder / "more").write_text("yes")
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["kept", "more", "new"]


async def test_calls_of_hosts_break_on_the_way_and_go_through_again() -> None:
    """A fault strikes once; without one the service's own answer comes back, and a bad gateway where there is none."""
    way = HostWay(NOBODYS_URL)
    await way.open()
    try:
        async with httpx.AsyncClient(base_url=way.url, trust_env=False) as host:
            way.faults.add(way.faults.parse({"op": "sync", "kind": "error", "args": {"status": 403}}))
            way.faults.add(way.faults.parse({"op": "sync", "kind": "drop"}))
            assert (await host.post("/v1/agent/hosts/sync", json={})).status_code == 403
            with pytest.raises(httpx.TransportError):
                await host.post("/v1/agent/hosts/sync", json={})
            assert (await host.post("/v1/agent/hosts/sync", json={})).status_code == 502
    finally:
        await way.close()
