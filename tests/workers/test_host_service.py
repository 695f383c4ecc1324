"""A host keeps working as a unit of systemd, where that runs and we may; else as a plain process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.folders import open_to_all
from workers.host import service
from workers.host.place import HostError, HostPlace


@pytest.fixture
def place() -> Iterator[HostPlace]:
    with open_to_all() as folder:
        yield HostPlace(folder / "a place%h")


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with systemd, as far as can be seen; what systemctl was asked is in `asked`."""
    folder, tools = tmp_path / "units", tmp_path / "bin"
    for one in (folder, tools, tmp_path / "run"):
        one.mkdir()
    program = tools / "systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n[ ! -e {tmp_path}/broken ] || {{ echo no >&2; exit 1; }}\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(service, "_UNITS", folder)
    monkeypatch.setattr(service, "_RUNS", tmp_path / "run")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


def test_a_unit_starts_it_now_and_after_a_reboot(place: HostPlace, units: Path, tmp_path: Path) -> None:
    place.prepare()
    assert service.UNIT in service.start(place)
    text = (units / service.UNIT).read_text()
    assert str(place.root).replace("%", "%%") in text, "systemd takes a percent sign for something of its own"
    assert "KillMode=process" in text, "what runs there outlives the program"
    assert (tmp_path / "asked").read_text().splitlines() == ["daemon-reload", f"enable --now {service.UNIT}"]


def test_its_own_unit_alone_is_removed(place: HostPlace, units: Path, tmp_path: Path) -> None:
    place.prepare()
    service.start(place)
    service.remove(HostPlace(tmp_path / "another"))
    assert (units / service.UNIT).exists()
    (tmp_path / "broken").touch()
    service.remove(place)
    assert not (units / service.UNIT).exists(), "whatever systemctl says"
    service.remove(place)


def test_what_systemctl_says_is_told(place: HostPlace, units: Path, tmp_path: Path) -> None:
    place.prepare()
    (tmp_path / "broken").touch()
    with pytest.raises(HostError, match="systemctl daemon-reload says: no"):
        service.start(place)


def test_without_systemd_it_is_a_process_and_the_way_back_is_told(
    place: HostPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.prepare()
    monkeypatch.setattr(service, "_RUNS", tmp_path / "none")
    told = service.start(place)
    assert "@reboot" in told
    assert str(place.log_file) in told
    until = time.monotonic() + 30
    while "this host is in no pool" not in place.log_file.read_text():  # it was started, and has nothing to do
        assert time.monotonic() < until
