"""Which uv is given to which machines."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest
import uv

from app.services.nodes import installer
from app.services.nodes.installer import installer_for, installer_named, machine_of

OWN = os.uname().machine
ELF = {"x86_64": b"\x3e\x00", "aarch64": b"\xb7\x00"}


def program(machine: str, rest: bytes = b"rest") -> bytes:
    return b"\x7fELF\x02\x01\x01" + b"\x00" * 9 + b"\x03\x00" + ELF[machine] + rest


def test_machines_like_the_server_get_the_server_s_own() -> None:
    """It comes with the dependencies of the service, and its hash is of the program as it runs."""
    found = installer_for(OWN, None)
    assert found is not None
    data = Path(uv.find_uv_bin()).read_bytes()
    assert gzip.decompress(found.packed) == data
    assert (found.sha256, found.size_bytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert installer_named(found.sha256, None) is found
    assert installer_named("0" * 64, None) is None


def test_machines_of_another_kind_get_what_the_operator_has_put_there(tmp_path: Path) -> None:
    """By what the program says of itself; what is no program for Linux is no program for machines."""
    (tmp_path / "uv-one").write_bytes(program("aarch64"))
    (tmp_path / "uv-mac").write_bytes(b"\xcf\xfa\xed\xfe" + b"\x00" * 40)
    (tmp_path / "uv-short").write_bytes(b"\x7fELF")
    (tmp_path / "notes.txt").write_bytes(program("x86_64", b"of another name"))
    found = installer_for("aarch64", tmp_path)
    assert found is not None
    assert gzip.decompress(found.packed) == program("aarch64")
    assert installer_for("riscv64", tmp_path) is None
    own = installer_for(OWN, tmp_path)
    assert own is not None
    assert own.size_bytes > 1_000_000


def test_the_operator_s_own_comes_first(tmp_path: Path) -> None:
    """Also for machines like the server."""
    (tmp_path / "uv").write_bytes(program(OWN, b"newer"))
    found = installer_for(OWN, tmp_path)
    assert found is not None
    assert gzip.decompress(found.packed).endswith(b"newer")


def test_without_any_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is missing, or its program is: machines use their own pip."""

    def missing() -> str:
        raise FileNotFoundError("no uv")

    monkeypatch.setattr(uv, "find_uv_bin", missing)
    assert installer_for(OWN, tmp_path) is None
    monkeypatch.undo()
    installer._programs.cache_clear()


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 9, program("x86_64")[:4] + b"\x01" + program("x86_64")[5:]]
)
def test_what_is_no_program_for_linux_is_told_apart(data: bytes) -> None:
    """Scripts, programs of other systems, of 32 bits, and beginnings of one."""
    assert machine_of(data) is None
