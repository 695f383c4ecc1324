"""Slurm's commands as children: without a shell, with an environment of their own, and never for longer than allowed.

What they say when they fail is all that there is: each text that means something here stands in one table.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from app.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    Transient,
)
from app.ports.pace import Pace
from providers.slurm.options import SlurmOptions

CALL = "call"  # the lane of all calls
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin"
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "LD_LIBRARY_PATH")
_LONGEST_TEXT = 300
_MOST_BYTES = 64 * 2**20

# A controller that knows nothing of our munge's key hangs up; so does one that ends just now, but not twice.
_HUNG_UP = "zero bytes were transmitted or received"

# Of the first that a failed command's words hold. In lower case, as Slurm writes them from 21.08 to 25.05. What a limit
# or a partition refuses is said of that shape alone: others may be within it, and the whole cluster is not given up.
_MEANINGS: tuple[tuple[str, type[ProviderError]], ...] = (
    ("munge encode failed", Transient),  # munged is away, on this very host
    ("protocol authentication error", AuthFailed),
    ("invalid authentication credential", AuthFailed),
    ("munge decode failed", AuthFailed),
    ("unable to contact slurm controller (connect failure)", Transient),
    ("access/permission denied", AuthFailed),
    ("user's group not permitted to use this partition", OfferGone),
    ("invalid user id", AuthFailed),
    ("job violates accounting/qos policy", NoCapacity),
    ("invalid account or account/partition combination", QuotaExceeded),
    ("invalid qos specification", QuotaExceeded),
    ("invalid partition name", OfferGone),
    ("invalid partition specified", OfferGone),
    ("requested partition configuration not available", NoCapacity),
    ("required partition not available", NoCapacity),
    ("required node not available", NoCapacity),
    ("requested nodes are busy", NoCapacity),
    ("requested node configuration is not available", OfferGone),
    ("requested time limit is invalid", OfferGone),
    ("invalid feature specification", OfferGone),
    ("invalid generic resource (gres) specification", OfferGone),
    ("requested reservation is invalid", OfferGone),
    ("unrecognized option", InvalidRequest),
    ("invalid option", InvalidRequest),
)


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The last that it complained of, for people; on one line."""
        return " ".join((self.err.strip() or self.out.strip()).split())[-_LONGEST_TEXT:] or f"exit code {self.code}"


class SlurmCommands:
    """Raises ProviderError only. Whoever does not answer in time is killed, with all that it has started."""

    def __init__(self, options: SlurmOptions, *, pace: Pace) -> None:
        self._options = options
        self._pace = pace

    async def run(self, name: str, *arguments: str, stdin: str = "") -> CommandAnswer:
        """What it said, whatever its exit code. Raises Transient when it could not be started, and OutcomeUnknown when
        it did not end in time."""
        await self._pace.turn(CALL, self._options.call_every_ms)
        program = str(Path(self._options.commands) / name) if self._options.commands else name
        with tempfile.TemporaryFile() as given:  # nobody else's to open, and no pipe that a command may leave unread
            given.write(stdin.encode())
            given.seek(0)
            process = await self._start(program, arguments, given.fileno())
        try:
            async with asyncio.timeout(self._options.timeout_s):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise OutcomeUnknown(f"{name} did not answer within {self._options.timeout_s:g} s") from error
        finally:
            await _end(process)
        if len(out) > _MOST_BYTES:
            raise Transient(f"{name} answered with {len(out)} bytes, of which at most {_MOST_BYTES} are read")
        return CommandAnswer(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))

    async def ask(self, name: str, *arguments: str) -> str:
        """The answer of a command that only looks, or that may be repeated."""
        said = await self._look(name, *arguments)
        if said.code != 0 and _HUNG_UP in said.words.lower():
            said = await self._look(name, *arguments)
            if _HUNG_UP in said.words.lower():
                raise AuthFailed(f"{name}: {said.words}: does this host's munge have the cluster's key, and the time?")
        if said.code != 0:
            raise refusal(name, said) or Transient(f"{name}: {said.words}")
        return said.out

    async def _start(self, program: str, arguments: tuple[str, ...], stdin: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise Transient(f"{program} cannot be started: {error.strerror or error}") from error

    async def _look(self, name: str, *arguments: str) -> CommandAnswer:
        try:
            return await self.run(name, *arguments)
        except OutcomeUnknown as error:
            raise Transient(error.message) from error

    def _environ(self) -> dict[str, str]:
        """Nothing of the service's own: no key of it, and no habit of whoever started it (SBATCH_PARTITION, ...)."""
        kept = {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}
        kept["PATH"] = f"{kept['PATH']}:{_USUAL_PATH}" if "PATH" in kept else _USUAL_PATH
        if self._options.conf:
            kept["SLURM_CONF"] = self._options.conf
        return {**kept, "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}


def refusal(name: str, said: CommandAnswer) -> ProviderError | None:
    """The error that a failed command's words stand for; None for words that are not known."""
    words = f"{said.err}\n{said.out}".lower()
    for text, kind in _MEANINGS:
        if text in words:
            return kind(f"{name}: {said.words}")
    return None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):  # one that hangs in the kernel is left to itself
            await process.wait()
