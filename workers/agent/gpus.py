"""What this machine's GPUs are, as nvidia-smi tells: asked at the start, and again while the machine lives.

Nothing it says is believed to be well formed: an old driver knows fewer columns, a broken one hangs, and a card that
has fallen off the bus is a line of prose. Whoever wants its answer waits for some seconds at most, also where the
kernel does not let go of it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from workers.agent.config import Config

ANSWERS, FAILS, ABSENT, SHARED = "answers", "fails", "absent", "shared"
LIMIT_S = 20.0
_MOST_BYTES = 256 * 1024
_MOST_GPUS = 64  # that are described; all are counted
_LONGEST_NAME = 100
_LONGEST_WORDS = 300
_ALL = ("index", "name", "memory.total", "driver_version", "ecc.errors.uncorrected.volatile.total", "mig.mode.current")
_USE = ("index", "utilization.gpu", "memory.used")
_FEW = _ALL[:4]  # which every driver knows that runs a torch of today
_CUDA = re.compile(r"CUDA Version:\s*(\d{1,2}\.\d)\b")
_DRIVER = re.compile(r"\d{1,5}(?:\.\d{1,5}){0,3}")


class Gpus(NamedTuple):
    """`state`: how it went. `why`: in words, where it failed. `number`: of all, also of those that are not described.
    `timed_out`: it said nothing in time, which a machine that is very busy explains as well."""

    state: str
    listed: Tuple[Dict[str, Any], ...] = ()
    number: int = 0
    driver: str = ""
    cuda: str = ""
    why: str = ""
    timed_out: bool = False

    def facts(self) -> Dict[str, Any]:
        """As the server is told."""
        known = {"count": self.number, "driver": self.driver, "cuda": self.cuda, "message": self.why}
        told = {name: value for name, value in known.items() if value or (name == "count" and self.state == ANSWERS)}
        return {"gpus": list(self.listed), "nvidia_smi": {"state": self.state, **told}}

    def names(self, indices: Sequence[int]) -> List[str]:
        """Of the GPUs with these numbers, as far as they are described."""
        by_index = {gpu["index"]: gpu["name"] for gpu in self.listed}
        return [by_index[index] for index in indices if index in by_index]


class ProgramAnswer(NamedTuple):
    """What a program answered."""

    code: Optional[int]  # None: it did not end in time, or could not be started
    text: str
    timed_out: bool = False


def look(config: Config, limit_s: float = LIMIT_S) -> Gpus:
    """Ask once. Takes a little longer than `limit_s` at most."""
    program, other = program_of(config)
    if program is None:
        return Gpus(other)
    until = time.monotonic() + limit_s
    said = _rows_of(program, until)
    rows = [row for row in map(_read, said.text.splitlines()) if row is not None] if said.code == 0 else []
    if not rows:
        return Gpus(FAILS, why=_why(said, limit_s), timed_out=said.timed_out)
    rows = _own(config, rows)
    if not rows:
        return Gpus(FAILS, why=f"none of the GPUs {_spoken(config.own_gpus or ())} that are this machine's is there")
    header = ask([program], until)
    cuda = _CUDA.search(header.text) if header.code == 0 else None
    return Gpus(
        state=ANSWERS,
        listed=tuple(gpu for gpu, _ in rows[:_MOST_GPUS]),
        number=len(rows),
        driver=next((driver for _, driver in rows if driver), ""),
        cuda=cuda.group(1) if cuda else "",
    )


def program_of(config: Config) -> Tuple[Optional[str], str]:
    """The nvidia-smi to ask, or why there is none. A machine that shares its host has no GPU of its own, unless whoever
    plays the machine plays that, too."""
    if config.nvidia_smi:
        return config.nvidia_smi, ANSWERS
    if config.shares_host and config.own_gpus is None:
        return None, SHARED
    return shutil.which("nvidia-smi"), ABSENT


def ask_use(config: Config, limit_s: float) -> "Dict[int, Tuple[Optional[int], Optional[int]]]":
    """How busy each GPU is (percent) and how much of its memory is used (bytes), by its number; nothing where that
    cannot be had in time."""
    program = program_of(config)[0]
    if program is None:
        return {}
    said = _query(program, _USE, time.monotonic() + limit_s)
    if said.code != 0:
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in said.text.splitlines()]
    found = {
        int(cells[0]): (
            min(100, int(cells[1])) if _is_number(cells[1]) else None,
            int(cells[2]) * 2**20 if _is_number(cells[2]) else None,
        )
        for cells in rows
        if len(cells) == len(_USE) and _is_number(cells[0])
    }
    if config.own_gpus is None:
        return found
    return {index: found[host] for index, host in enumerate(config.own_gpus) if host in found}


def host_index(config: Config, index: int) -> int:
    """What the host calls a GPU of this machine: a machine that shares its host counts its own GPUs from 0 on."""
    own = config.own_gpus
    return index if own is None or index >= len(own) else own[index]


def machine_index(config: Config, name: str) -> Optional[int]:
    """The other way round; None for what is the name of none of this machine's."""
    if not _is_number(name):
        return None
    own = config.own_gpus
    return int(name) if own is None else next((index for index, host in enumerate(own) if host == int(name)), None)


def _own(config: Config, rows: "List[Tuple[Dict[str, Any], str]]") -> "List[Tuple[Dict[str, Any], str]]":
    """Those of this machine, as it counts them."""
    if config.own_gpus is None:
        return rows
    by_index = {gpu["index"]: (gpu, driver) for gpu, driver in rows}
    found = [(index, by_index[host]) for index, host in enumerate(config.own_gpus) if host in by_index]
    return [({**gpu, "index": index}, driver) for index, (gpu, driver) in found]


def _spoken(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _rows_of(program: str, until: float) -> ProgramAnswer:
    """As much as this driver can tell."""
    said = _query(program, _ALL, until)
    return _query(program, _FEW, until) if said.code not in (0, None) else said


def _query(program: str, columns: Tuple[str, ...], until: float) -> ProgramAnswer:
    return ask([program, "--query-gpu=" + ",".join(columns), "--format=csv,noheader,nounits"], until)


def ask(argv: List[str], until: float) -> ProgramAnswer:
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return ProgramAnswer(None, f"it cannot be started: {error}")
    assert process.stdout is not None
    data, is_over = _read_until(process.stdout.fileno(), until)
    try:
        code: Optional[int] = process.wait(max(0.0, until - time.monotonic()) if is_over else 0.0)
    except subprocess.TimeoutExpired:
        code = None
    _leave(process)
    text = data.decode("utf-8", "replace")
    too_much = len(data) >= _MOST_BYTES
    return ProgramAnswer(None if too_much else code, text, timed_out=code is None and not too_much)


def _read_until(pipe: int, until: float) -> Tuple[bytes, bool]:
    """What came, and whether that was all."""
    data = b""
    while len(data) < _MOST_BYTES:
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            return data, False
        piece = os.read(pipe, 65_536)
        if not piece:
            return data, True
        data += piece
    return data[:_MOST_BYTES], False


def _leave(process: "subprocess.Popen[bytes]") -> None:
    """End it with all that it has started. One that hangs in the kernel is left to itself."""
    assert process.stdout is not None
    process.stdout.close()
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, 9)
        process.wait(1.0)
    except (OSError, subprocess.TimeoutExpired):
        pass


def _read(line: str) -> Optional[Tuple[Dict[str, Any], str]]:
    """A GPU and its driver; None for a line that is none."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) not in (len(_FEW), len(_ALL)) or not _is_number(cells[0]) or not cells[1]:
        return None
    gpu: Dict[str, Any] = {"index": int(cells[0]), "name": _plain(cells[1])[:_LONGEST_NAME]}
    gpu["memory_mib"] = int(cells[2]) if _is_number(cells[2]) else None
    if len(cells) == len(_ALL):
        gpu["ecc_errors"] = int(cells[4]) if _is_number(cells[4]) else None
        gpu["mig"] = cells[5] == "Enabled"
    return gpu, cells[3] if _DRIVER.fullmatch(cells[3]) else ""


def _why(said: ProgramAnswer, limit_s: float) -> str:
    if said.timed_out:
        return f"it has not answered within {limit_s:g} s"
    words = _plain(" ".join(said.text.split()))[:_LONGEST_WORDS]
    how = "" if said.code in (0, None) else f" (exit code {said.code})"
    return (words or "it says nothing") + how


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
