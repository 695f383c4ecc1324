"""Which tests stand in one line, and which are shared out one by one.

pytest-xdist has groups for this (`--dist loadgroup`), but those of 3.8 have no effect with pytest 9.2: it renames tests
by an attribute that is no longer read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

STACKS = "stacks"
_MARK = "mark.stack"


class Lines(LoadScopeScheduling):  # type: ignore[misc]
    """What starts whole stacks runs in one process, one after the other: each file that has such a test. Everything
    else goes to whichever process is free."""

    def _split_scope(self, nodeid: str) -> str:
        return STACKS if starts_stacks(nodeid.partition("::")[0]) else nodeid


@cache
def starts_stacks(file: str) -> bool:
    """Whether this file has a test with that mark. Read as text: whoever shares the tests out collects none."""
    try:
        return _MARK in Path(file).read_text(encoding="utf-8")
    except OSError:
        return False
