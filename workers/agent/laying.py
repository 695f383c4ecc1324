"""What a script had saved by itself, laid back where it was: it finds it there when it starts.

Code of the run may have run already, as its user (installers, the imports of a process that stands by), and may have
put links anywhere. So folders are opened one in the other, none of them through a link.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Iterator, List, Optional, Sequence

from workers.agent.files import listing
from workers.agent.own_folders import Pattern
from workers.agent.workspace import Workspace

OWN = "allpass-own"  # in a checkpoint: what lies below it has its path from the code on (`allpass.hooks.accelerating`)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def lay_back(workspace: Workspace, resume: Path, pattern: Optional[Pattern]) -> bool:
    """Whether the checkpoint in the folder `resume` is one of the script's own, by its owner's word or by a hook's,
    which then lies below the code too. Both are the same files. Raises OSError, Unsafe."""
    top = _top_of(listing(resume), pattern)
    if top is None:
        return False
    source = (*resume.relative_to(workspace.home).parts, *top)
    target = workspace.code.relative_to(workspace.home).parts
    for path in listing(resume.joinpath(*top)):
        *folders, name = path.split("/")
        with (
            _opened(workspace.home, [*source, *folders]) as here,
            _opened(workspace.home, [*target, *folders], make=True) as there,
        ):
            with contextlib.suppress(FileNotFoundError):  # of the bundle
                os.unlink(name, dir_fd=there)
            os.link(name, name, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    return True


def _top_of(paths: Sequence[str], pattern: Optional[Pattern]) -> "Optional[List[str]]":
    """The folders of the checkpoint below which the paths are those from the code on; None in any other checkpoint."""
    if paths and all(path.startswith(f"{OWN}/") for path in paths):
        return [OWN]
    is_named = pattern is not None and all(pattern.step_of_path(path) is not None for path in paths)
    return [] if paths and is_named else None


@contextlib.contextmanager
def _opened(top: Path, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A folder below `top`, which is ours."""
    folder = os.open(top, _FOLDER)
    try:
        for name in names:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)
