"""Folders that every user of this machine can reach.

pytest's own cannot be used where machines run code as other users: whichever pytest starts next on this machine closes
the folder above them to all but its owner.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_to_all() -> Iterator[Path]:
    """A new one, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="allpass-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
