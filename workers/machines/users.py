"""The user ids of machines that are played by processes of this host: claimed for each machine, swept at its end.

On a real machine an agent has all users to itself. Here each machine gets a block of its own (`workers.agent.blocks`):
jobs on different machines, of whatever cloud of whatever installation on this host, cannot touch each other. The
machine's keeper holds the claim.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from workers.agent import blocks, sweep
from workers.machines.parts import sweep_command

_SWEEP_S = 60.0
_NOTE = re.compile(rb"[0-9]+\n")


def claim() -> blocks.Block | None:
    """A block for a machine that starts; None where we cannot give it one, and its code runs as we do. Raises
    blocks.NoneFree."""
    if os.geteuid() != 0 or not sweep.LINUX:
        return None
    return blocks.claim(blocks.ranges(os.environ))


class MachineUsers:
    """Which block a machine has, written down in its folder for whoever has to clear up after its keeper. `root`: where
    its agent works."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._root = root

    def note(self, block: blocks.Block | None) -> None:
        """Before anything runs."""
        if block is not None:
            self._file.touch(mode=0o600)
            self._file.write_text(f"{block.first}\n")

    def sweep(self, *, held: bool = False) -> bool:
        """End all that runs as a user of the machine, and remove what they left on this host. `held`: its keeper lives,
        and has the block. False: something cannot be ended."""
        first = self._noted()
        if first is not None and held:
            return self._end(first)
        if first is not None and not self._end_unheld(first):
            return False
        self._file.unlink(missing_ok=True)
        return True

    def _noted(self) -> int | None:
        """None: nothing has run here as a user of its own. That a note is cut short means the same: nothing is started
        before it is whole."""
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            return None
        return int(text) if _NOTE.fullmatch(text) else None

    def _end_unheld(self, first: int) -> bool:
        block = blocks.reclaim(first)
        if block is None:  # another machine has it: when that came, nothing ran here any more
            return True
        try:
            return self._end(first)
        finally:
            block.close()

    def _end(self, first: int) -> bool:
        uids = blocks.given_out(first, self._root)
        argv = [*sweep_command(), str(first), str(uids[0]), str(uids[-1])]
        done = subprocess.run(argv, env={}, cwd="/", capture_output=True, timeout=_SWEEP_S, check=False)  # noqa: S603 - ours
        return done.returncode == 0


def sweep_here(first: int, root: Path) -> None:
    """By the keeper, which holds the block and has one thread."""
    uids = blocks.given_out(first, root)
    sweep.clean(first, set(uids) - set(sweep.end_users(first, uids)))
