"""Which tests stand in a line, and which are shared out one by one.

pytest-xdist has groups for this (`--dist loadgroup`), but those of 3.8 have no effect with pytest 9.2: it renames tests
by an attribute that is no longer read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

STACKS, SERVERS = "stacks", "servers"
TORCH = "torch"
_STACK_MARK = "mark.stack"
_TORCH_MARK = "mark.training"


class Lines(LoadScopeScheduling):  # type: ignore[misc]
    """What starts whole stacks runs one after the other: each file that has such a test, those of tests/e2e in one
    process and the others in another. They mostly wait, so both go on at a time. What needs torch runs in one process
    as well: it is loaded once then, and what trainings are compared with is trained once. Everything else goes to
    whichever process is free."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if starts_stacks(file):
            return STACKS if "e2e" in Path(file).parts else SERVERS
        return TORCH if _has(file, _TORCH_MARK) else nodeid


def starts_stacks(file: str) -> bool:
    """Whether this file has a test with that mark."""
    return _has(file, _STACK_MARK)


@cache
def _has(file: str, mark: str) -> bool:
    """Read as text: whoever shares the tests out collects none."""
    try:
        return mark in Path(file).read_text(encoding="utf-8")
    except OSError:
        return False
