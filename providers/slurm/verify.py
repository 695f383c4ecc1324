"""Whether this host's settings for Slurm work: `python -m providers.slurm.verify`, or `scripts/verify-slurm.sh`.

One tiny job for each shape, as Allpass would submit it. What is wrong is said in one sentence; each job is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Mapping

from pydantic import ValidationError

from app.core.model.ids import make_id
from app.errors import ProviderError
from app.ports.pace import ProcessPace
from app.system import SystemClock
from providers.slurm.commands import SlurmCommands
from providers.slurm.logs import JobLogs
from providers.slurm.marks import SlurmMark
from providers.slurm.options import SlurmOptions
from providers.slurm.outlook import Outlook
from providers.slurm.plugin import SlurmSettings, options_of
from providers.slurm.queue import read_squeue, squeue_format
from providers.slurm.shapes import SlurmShape
from providers.slurm.submission import order

_JOB_S = 60.0  # beside the wait in the queue
_TIMEOUT_S = 60.0
_EXIT = re.compile(r"\bExitCode=([0-9]+):([0-9]+)")
_STATE = re.compile(r"\bJobState=([A-Z_]+)")
_LIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"})
_WRONG = {
    11: "its node has no Python 3.9 or newer in PATH: set ALLPASS_SLURM_SETUP ('module load python')",
    12: "nothing can be written below ALLPASS_SLURM_SCRATCH on its node: name a folder that this user may use",
    13: "its node does not reach ALLPASS_PUBLIC_URL: give the service an address that compute nodes reach",
    14: "its node shows fewer GPUs than the shape's gpu_count: mend gres or gpu_count",
}
_TEST = """\
#!/bin/sh
@SETUP@
for python in python3 python none; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
done
[ "$python" != none ] || exit 11
mkdir -p @SCRATCH@ && file=$(mktemp @SCRATCH@/allpass-verify-XXXXXX) && rm -f "$file" || exit 12
if [ -n @URL@ ]; then
  "$python" -I -c 'import sys, urllib.error, urllib.request
try: urllib.request.urlopen(sys.argv[1], timeout=20).close()
except urllib.error.HTTPError: pass' @URL@ || exit 13
fi
if [ @GPUS@ -gt 0 ] && command -v nvidia-smi >/dev/null 2>&1; then
  [ "$(nvidia-smi -L | grep -c '^GPU ')" -ge @GPUS@ ] || exit 14
fi
"""


class Verification:
    """Of one cluster, by its options. `url`: the service's; empty: not looked at."""

    def __init__(self, options: SlurmOptions, url: str) -> None:
        clock = SystemClock()
        self._options = options
        self._url = url
        self._commands = SlurmCommands(options, pace=ProcessPace(clock, patience_ms=60_000))
        self._outlook = Outlook(self._commands, options, clock)
        self._logs = JobLogs(options.log_folder)

    async def of(self, shape: SlurmShape) -> str:
        """What is wrong with this shape, in one sentence; empty: nothing."""
        try:
            waits = await self._outlook.waits_ms([shape])
            if shape.name not in waits:
                return f"it offers nothing now: {self._outlook.why(shape)}"
            return await self._submit(shape, waits[shape.name] / 1000 + _JOB_S)
        except ProviderError as error:
            return error.message

    async def _submit(self, shape: SlurmShape, within_s: float) -> str:
        label = make_id("node", time.time_ns() // 1_000_000, secrets.randbits(50))
        mark = SlurmMark(label, shape.name, 0)
        self._logs.open(label, time.time_ns() // 1_000_000)
        told = order(shape, mark, self._options, log=self._logs.path_of(label))
        said = await self._commands.run("sbatch", *told, stdin=self._script(shape))
        job_id = said.out.strip().partition(";")[0]
        if said.code != 0 or not job_id.isdigit():
            return f"sbatch refuses it: {said.words}"
        try:
            if not await self._is_marked(label):
                return (
                    "squeue does not show a job's comment and name as they were given: Allpass knows its jobs by them"
                )
            return await self._outcome(job_id, label, time.monotonic() + within_s)
        finally:
            await self._commands.run("scancel", f"--name={label}", job_id)

    async def _is_marked(self, label: str) -> bool:
        nonce = secrets.token_hex(8)
        asked = (f"--user={os.getuid()}", "--states=all", "--noheader", f"--format={squeue_format(nonce)}")
        return any(line.mark.label == label for line in read_squeue(await self._commands.ask("squeue", *asked), nonce))

    async def _outcome(self, job_id: str, label: str, until_s: float) -> str:
        state = "PENDING"
        while time.monotonic() < until_s:
            shown = await self._commands.ask("scontrol", "show", "job", job_id, "--oneliner")
            found, ended = _STATE.search(shown), _EXIT.search(shown)
            state = found.group(1) if found else state
            if state not in _LIVE:
                code = int(ended.group(1)) if ended else -1
                return _WRONG.get(code, "") if state in {"COMPLETED", "FAILED"} and code in {0, *_WRONG} else (
                    f"its job {job_id} ended as {state.lower()} with exit code {code}: {self._last_words(label)}"
                )  # fmt: skip
            await asyncio.sleep(0.5)
        return f"its job {job_id} was {state.lower()} when its time here was up; it was cancelled"

    def _last_words(self, label: str) -> str:
        return " ".join(self._logs.tail(label, 3).split()) or "set ALLPASS_SLURM_LOG_DIR to see what it wrote"

    def _script(self, shape: SlurmShape) -> str:
        return (
            _TEST.replace("@SETUP@", self._options.setup)
            .replace("@SCRATCH@", shlex.quote(self._options.scratch))
            .replace("@URL@", shlex.quote(self._url))
            .replace("@GPUS@", str(shape.gpu_count))
        )


async def _verify(options: SlurmOptions, url: str) -> int:
    verification, wrong = Verification(options, url), 0
    for shape in options.shapes:
        problem = await verification.of(shape)
        wrong += bool(problem)
        print(f"{shape.name}: {problem or 'works'}", flush=True)
    return 1 if wrong else 0


def main(environment: Mapping[str, str] = os.environ) -> int:
    try:
        settings = SlurmSettings(_env_prefix="ALLPASS_SLURM_")
    except (ValidationError, ValueError) as error:
        print(f"the settings cannot be read: {error}", file=sys.stderr)
        return 2
    if not settings.shapes:
        print("ALLPASS_SLURM_SHAPES is not set: docs/guides/slurm.md shows how to write it", file=sys.stderr)
        return 2
    return asyncio.run(_verify(options_of(settings, _TIMEOUT_S), environment.get("ALLPASS_PUBLIC_URL", "")))


if __name__ == "__main__":
    sys.exit(main())
