"""What the emulated Vast.ai fetches out of a container for its customer: its log, and what a few commands say.

Either is put somewhere, and the answer names the address. `ls`, `du` and `rm` are all the commands that the company
takes; here they see the container's own disk and nothing of the host.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from providers.emulators.rows import MachineRow
from providers.emulators.serving import Grounds
from providers.emulators.vast.errors import RefusedAnswer
from providers.emulators.vast.reading import body_of

COMMANDS = frozenset({"ls", "du", "rm"})
_FLAGS = re.compile(r"-[A-Za-z0-9]+")
_MOST_RESULTS = 1_000
_MOST_OUTPUT_BYTES = 1_000_000
_COMMAND_S = 10.0


class Inside:
    """Results are kept while the emulator runs."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._results: dict[str, tuple[int, str]] = {}

    async def logs(self, request: Request, machine: MachineRow) -> Response:
        """The last lines of the container's log, those with `filter` in them."""
        body = await body_of(request)
        text = await asyncio.to_thread(self._grounds.estate.log_tail, machine.ref, int(body.get("tail") or 1_000))
        wanted = str(body.get("filter") or "")
        return self._kept(request, "".join(line for line in text.splitlines(keepends=True) if wanted in line))

    async def execute(self, request: Request, machine: MachineRow) -> Response:
        """A command on the container's disk, whether it runs or not."""
        disk = self._grounds.data_dir / "machines" / machine.ref / "root"
        words = _words(str((await body_of(request)).get("command") or ""))
        if not disk.is_dir():
            raise RefusedAnswer(400, "invalid_args", "the container has not started yet")
        return self._kept(request, await _said(_on_disk(words, disk), disk), writeable_path=str(disk))

    async def result(self, request: Request) -> Response:
        """Not part of the API: no key, and nothing there until it has been put there."""
        ready_ms, text = self._results.get(request.path_params["token"], (None, ""))
        if ready_ms is None or self._grounds.now_ms() < ready_ms:
            return PlainTextResponse("NoSuchKey", status_code=404)
        return PlainTextResponse(text)

    def _kept(self, request: Request, text: str, **more: str) -> Response:
        token = secrets.token_hex(16)
        self._results[token] = (self._grounds.now_ms() + self._grounds.switches["log_delay_ms"], text)
        while len(self._results) > _MOST_RESULTS:
            del self._results[next(iter(self._results))]
        url = str(request.base_url.replace(path=f"/results/{token}"))
        return JSONResponse({"success": True, "result_url": url, "msg": "result uploaded to " + url, **more})


def _words(command: str) -> list[str]:
    """Raises Refused for any other command."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RefusedAnswer(400, "invalid_args", f"the command cannot be read: {error}") from error
    if not words or words[0] not in COMMANDS:
        raise RefusedAnswer(400, "invalid_args", f"the command is none of {', '.join(sorted(COMMANDS))}")
    for word in words[1:]:
        if word.startswith("-") and not _FLAGS.fullmatch(word):
            raise RefusedAnswer(400, "invalid_args", f"{word} is no option of one letter")
    return words


def _on_disk(words: list[str], disk: Path) -> list[str]:
    """The same command with its paths below the disk. Raises Refused for one that leads out of it."""
    flags = [word for word in words[1:] if _FLAGS.fullmatch(word)]
    paths = [disk / word.lstrip("/") for word in words[1:] if word not in flags]
    root = disk.resolve()
    for path in paths:
        inner = path.parent.resolve() / path.name if words[0] == "rm" else path.resolve()
        if not inner.is_relative_to(root) or (words[0] == "rm" and inner == root):
            raise RefusedAnswer(400, "invalid_args", f"{path.name} is not on the disk of the container")
    if words[0] != "rm":
        paths = paths or [disk]
    return [words[0], *flags, "--", *(str(path) for path in paths)]


async def _said(words: list[str], disk: Path) -> str:
    """What it prints, errors included."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=disk,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_COMMAND_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return "the command took too long"
    return output[:_MOST_OUTPUT_BYTES].decode(errors="replace")
