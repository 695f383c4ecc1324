"""What a script had saved by itself, laid back where it was: it finds it there when it starts.

Code of the run may have run already, as its user (installers, the imports of a process that stands by), and may have
put links anywhere. So folders are opened one in the other, none of them through a link.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Iterator, List, Optional, Sequence

from workers.agent.errors import Unsafe
from workers.agent.files import give_to, listing
from workers.agent.own_folders import OwnFolders, Pattern
from workers.agent.uploading import Candidate
from workers.agent.workspace import Workspace

OWN = "allpass-own"  # in a checkpoint: what lies below it has its path from the code on (`allpass.hooks.accelerating`)
# In the checkpoint directory, of processes that are gone: what they began from, what hooks noted for one another, and
# parts of a checkpoint that nobody puts together any more.
_OF_PROCESSES = re.compile(r"resume-\d+|\.accelerate|\.trainer|\.rank-\d+-.*")
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
            _opened(workspace.home, [*target, *folders], make=True, uid=workspace.uid) as there,
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
def _opened(top: Path, names: Sequence[str], *, make: bool = False, uid: Optional[int] = None) -> Iterator[int]:
    """A folder below `top`, which is ours. Folders that are made are that user's."""
    folder = os.open(top, _FOLDER)
    try:
        for name in names:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
                    if uid is not None:
                        os.chown(name, uid, uid, dir_fd=folder, follow_symlinks=False)
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def lay_here(workspace: Workspace, saved: Candidate, pattern: Optional[Pattern]) -> Path:
    """A checkpoint that this very run has saved, where a further run of its job would find it: the same files, and no
    byte is copied. Its processes are gone. Raises OSError, and Unsafe for what could not be stored either."""
    is_folder = saved.path.is_dir()
    source = saved.path if is_folder else saved.path.parent
    names = saved.names or (listing(source) if is_folder else [saved.path.name])
    if not names:
        raise Unsafe("the checkpoint is empty")
    target = workspace.resume(saved.step)
    _clear(workspace, target)
    fence = workspace.fence()
    for path in names:
        *folders, name = path.split("/")
        with (
            _opened(workspace.home, [*source.relative_to(workspace.home).parts, *folders]) as here,
            _opened(workspace.home, [*target.relative_to(workspace.home).parts, *folders], make=True) as there,
        ):
            if not stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                os.link(name, name, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
                continue
            made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=there)
            with os.fdopen(made, "wb") as copy, fence.open(source / path) as file:
                shutil.copyfileobj(file, copy)
    if pattern is not None:
        _take_newer_away(workspace, pattern, saved.step)
    lay_back(workspace, target, pattern)
    give_to(workspace.uid, target)
    return target


def clear_after(workspace: Workspace, kept: Sequence[Path]) -> None:
    """Take away what only the processes before needed: of several processes of one run the next ones would take it for
    their own, or it fills the disk. What holds one of these paths stays. Nobody of the run is there. Raises OSError."""
    if not workspace.checkpoints.is_dir():
        return
    with _opened(workspace.home, workspace.checkpoints.relative_to(workspace.home).parts) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - of the folder that was opened
            place = workspace.checkpoints / name
            if _OF_PROCESSES.fullmatch(name) and not any(place in (path, *path.parents) for path in kept):
                _remove(workspace, name, folder)


def _clear(workspace: Workspace, target: Path) -> None:
    """What may lie in its place."""
    with _opened(workspace.home, target.parent.relative_to(workspace.home).parts) as folder:
        _remove(workspace, target.name, folder)


def _take_newer_away(workspace: Workspace, pattern: Pattern, step: int) -> None:
    """What a script had begun to save when it left would be the newest that it finds."""
    folders = OwnFolders(workspace.code, pattern, workspace.uid)
    for newer, name in folders.entries().items():
        if newer > step:
            place = (workspace.code / folders.place(name)).parent
            with _opened(workspace.home, place.relative_to(workspace.home).parts) as folder:
                _remove(workspace, name, folder)


def _remove(workspace: Workspace, name: str, folder: int) -> None:
    """Out of reach of the run, and away; no link of the run's is followed."""
    aside = workspace.spool / f"aside-{os.urandom(4).hex()}"
    try:
        os.rename(name, aside, src_dir_fd=folder)
    except FileNotFoundError:
        return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink()
