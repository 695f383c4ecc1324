"""A bundle that no machine can unpack is its owner's fault, and no machine's: it is tried once."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bundles import BAD, GOOD, code
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from workers.agent import bundle
from workers.agent.errors import Unsafe

Start = Callable[..., AgentProcess]
_SMALL = sorted(BAD.keys() - {"a bomb"})  # 1.6 GB are less than a machine takes: it is the service's to refuse


def _names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _unpack(data: bytes, folder: Path) -> Path:
    archive, target = folder / "bundle", folder / "run" / "code"
    archive.write_bytes(data)
    target.mkdir(parents=True)
    bundle.extract(archive, target)
    return target


@pytest.mark.parametrize("name", _SMALL)
def test_a_bundle_that_the_service_would_refuse_is_never_the_machines_fault(name: str, tmp_path: Path) -> None:
    """Registered before it was looked at: it is unpacked, or refused as Unsafe, with nothing outside of its folder."""
    data, _, fails = BAD[name]
    try:
        _unpack(data, tmp_path)
    except Unsafe as error:
        assert len(str(error)) < 500
    else:
        assert not fails
    assert _names_in(tmp_path) == ["bundle", "run"]
    assert _names_in(tmp_path / "run") == ["code"]


@pytest.mark.parametrize("name", GOOD)
def test_a_bundle_that_the_service_takes_can_be_unpacked(name: str, tmp_path: Path) -> None:
    """The service and the machines agree."""
    assert (_unpack(GOOD[name], tmp_path) / "train.py").is_file()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_fails_is_the_machines_fault(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine may have room: what the system says of its disk stays an OSError."""

    def fails(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(shutil, "copyfileobj", fails)
    with pytest.raises(OSError, match=os.strerror(number)) as raised:
        _unpack(code(), tmp_path)
    assert raised.value.errno == number


def test_an_agent_blames_the_bundle(plane: Plane, start_agent: Start) -> None:
    """The run ends with a reason in words, and no fault of the machine: it is not tried on another one."""
    names = ("a file and a folder", "a long name", "no name", "beneath a file", "a damaged gzip")
    runs = {name: desired(plane, BAD[name][0], job_id=f"job_{n}") for n, name in enumerate(names)}
    for run in runs.values():
        plane.want(run)
    start_agent()
    for name, run in runs.items():
        ended = plane.wait_exit(run.run_id)
        assert "the app's code cannot be used" in (ended.environment_error or ""), name
        assert not ended.machine_fault, name
