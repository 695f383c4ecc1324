"""From a script or a folder to the bytes that a job's machine gets: same content, same bytes, everywhere."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from allpass.archive import packed_size, tar_gz
from allpass.errors import BundleError
from allpass.ignore import IGNORE_FILE, IgnoreRules
from allpass.members import BadMember, Members
from allpass.scripts import check_kind, check_syntax

MAX_BUNDLE_BYTES = 100 * 1024 * 1024
DEFAULT_ENTRYPOINTS = ("train.py", "main.py")


@dataclass(frozen=True)
class Bundle:
    """`content` is a tar.gz with every path relative to the code folder; `sha256` is its address. `entrypoint` is empty
    where jobs bring their command."""

    content: bytes = field(repr=False)
    sha256: str
    entrypoint: str
    paths: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Length of `content`."""
        return len(self.content)


@dataclass(frozen=True)
class _Found:
    path: str
    file: Path
    size_bytes: int


def checked_code(code: str | os.PathLike[str]) -> Path:
    """The path that `code` is. Raises BundleError for what is none: a function cannot travel without its module."""
    if isinstance(code, (str, os.PathLike)):
        return Path(code).expanduser()
    told = inspect.getsourcefile(code) if inspect.isfunction(code) else None
    name = Path(told).name if told is not None else "train.py"
    what = f"the function {code.__name__}()" if inspect.isfunction(code) else f"{code!r}"
    raise BundleError(
        f"code: {what} is neither a script nor a folder; a job runs a file from its first line", hint=f'code="{name}"'
    )


def make_bundle(code: str | os.PathLike[str], entrypoint: str | None = None, *, needs_script: bool = True) -> Bundle:
    """Pack a script, or a folder with all that belongs to it.

    `entrypoint` is the script to run, relative to the folder (default: train.py, else main.py); for a single script
    it is that script. Where jobs bring a command, a folder `needs_script` no more. What `.allpassignore` names is left
    out, and so are `.git`, `.venv`, caches and `.env`. A link that stays inside the folder is stored as what it points
    to. Raises BundleError, naming the path and the fix.
    """
    source = Path(code).expanduser()
    if source.is_file():
        found = [_single(source, entrypoint)]
    elif source.is_dir():
        found = sorted(_folder(source), key=lambda one: one.path.encode("utf-8", "surrogatepass"))
    else:
        raise _missing(source)
    paths = [one.path for one in found]
    start = (
        "" if not needs_script and entrypoint is None and source.is_dir() else _entrypoint(source, entrypoint, paths)
    )
    if start:
        check_kind(start)
    _check_members(found)
    _check_size(found)
    if start.endswith(".py"):
        check_syntax(next(_read(one) for one in found if one.path == start), start)
    content = tar_gz((one.path, _read(one)) for one in found)
    if len(content) > MAX_BUNDLE_BYTES:  # a file grew while it was read
        _check_size(found, grown_to=len(content))
    digest = hashlib.sha256(content).hexdigest()
    return Bundle(content=content, sha256=digest, entrypoint=start, paths=tuple(paths))


def _missing(source: Path) -> BundleError:
    told = os.fspath(source)
    if re.match(r"(https?|ssh|git):/|git@", told):
        return BundleError(
            f"code: {told!r} is an address, and code is sent from here", hint="git clone it, then its folder"
        )
    folder = source.parent
    names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    near = difflib.get_close_matches(source.name, sorted(names), n=1)
    hint = f"code={os.fspath(folder / near[0])!r}" if near else 'code="train.py" or code="."'
    return BundleError(f"code: there is no file or folder {told!r} in {Path.cwd()}", hint=hint)


def _single(script: Path, entrypoint: str | None) -> _Found:
    if entrypoint not in (None, script.name):
        raise BundleError(
            f"entrypoint {entrypoint!r} is not in the bundle: code is the single file {script.name}",
            path=script.name,
            hint=f"leave entrypoint out, or give the folder: code={os.fspath(script.parent)!r}",
        )
    return _Found(script.name, script, script.stat().st_size)


def _folder(root: Path) -> list[_Found]:
    found = list(_walk(root, root.resolve(), "", _rules(root), (root.resolve(),)))
    if not found:
        raise BundleError(
            f"code: the folder {os.fspath(root)!r} has no file to send (what {IGNORE_FILE} names is left out)",
            hint="put train.py into it",
        )
    return found


def _rules(root: Path) -> IgnoreRules:
    file = root / IGNORE_FILE
    if not file.is_file():
        return IgnoreRules()
    try:
        return IgnoreRules(file.read_text(encoding="utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise BundleError(
            f"{IGNORE_FILE}: is not UTF-8 text ({error.reason} at byte {error.start})",
            path=IGNORE_FILE,
            hint="save it as UTF-8",
        ) from error


def _walk(folder: Path, root: Path, prefix: str, rules: IgnoreRules, inside: tuple[Path, ...]) -> Iterator[_Found]:
    """Files below `folder`. `inside` are the real paths of the folders we are in, to see a link that leads back."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(prefix.rstrip("/") or ".", error) from error
    for entry in entries:
        path = prefix + entry.name
        if rules.leaves_out(path, is_folder=entry.is_dir(follow_symlinks=False)):
            continue
        target = _link_target(entry, path, root) if entry.is_symlink() else Path(entry.path)
        status = target.stat()
        if stat.S_ISDIR(status.st_mode):
            real = target.resolve()
            if real in inside:
                raise BundleError(
                    f"{path}: this link leads back to a folder it is in", path=path, hint=f"add {path} to {IGNORE_FILE}"
                )
            yield from _walk(target, root, path + "/", rules, (*inside, real))
        elif stat.S_ISREG(status.st_mode):
            yield _Found(path, target, status.st_size)
        else:
            raise BundleError(
                f"{path}: {_kind(status.st_mode)} cannot be sent, only files and folders",
                path=path,
                hint=f"add {path} to {IGNORE_FILE}",
            )


def _link_target(entry: os.DirEntry[str], path: str, root: Path) -> Path:
    """What a link points to, which must exist inside the folder: a bundle never takes what was not meant."""
    try:
        target = Path(entry.path).resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise BundleError(
            f"{path}: the link points to {os.fspath(Path(entry.path).readlink())!r}, which does not exist",
            path=path,
            hint=f"remove the link, or add {path} to {IGNORE_FILE}",
        ) from error
    if not target.is_relative_to(root):
        raise BundleError(
            f"{path}: the link points outside the code folder, to {os.fspath(target)}",
            path=path,
            hint=f"copy the file into the folder, or add {path} to {IGNORE_FILE}",
        )
    return target


def _check_members(found: list[_Found]) -> None:
    members = Members()
    try:
        for one in found:
            members.add_file(one.path, 0)  # their size is told below, with the largest
    except BadMember as error:
        what = str(error) if error.path is not None else f"the code {error}"
        raise BundleError(what, path=error.path, hint=error.fix) from error


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a device"))
    return next((name for is_kind, name in kinds if is_kind(mode)), "a special file")


def _entrypoint(source: Path, entrypoint: str | None, paths: list[str]) -> str:
    if source.is_file():
        return paths[0]
    scripts = [path for path in paths if path.endswith((".py", ".sh"))]
    listing = ", ".join(scripts[:8]) + (f" and {len(scripts) - 8} more" if len(scripts) > 8 else "")
    there = f"it has {listing}" if scripts else f"it has no script among its {len(paths)} files"
    if entrypoint is not None:
        wanted = Path(entrypoint).as_posix()
        if wanted not in paths:
            raise BundleError(
                f"entrypoint {entrypoint!r} is not in the folder {os.fspath(source)!r} ({there})",
                path=entrypoint,
                hint=f"entrypoint={scripts[0]!r}" if scripts else f"put {entrypoint} into it",
            )
        return wanted
    for default in DEFAULT_ENTRYPOINTS:
        if default in paths:
            return default
    raise BundleError(
        f"the folder {os.fspath(source)!r} has neither train.py nor main.py ({there}): which script should run?",
        hint=f"entrypoint={scripts[0]!r}" if scripts else "put train.py into it",
    )


def _check_size(found: list[_Found], *, grown_to: int | None = None) -> None:
    size = grown_to or packed_size((one.path, one.size_bytes) for one in found)
    if size <= MAX_BUNDLE_BYTES:
        return
    largest = sorted(found, key=lambda one: -one.size_bytes)[:3]
    names = ", ".join(f"{one.path} ({one.size_bytes / 1e6:.1f} MB)" for one in largest)
    raise BundleError(
        f"the code is {size / 2**20:.1f} MiB, more than the {MAX_BUNDLE_BYTES // 2**20} MiB a bundle may have. "
        f"Largest: {names}",
        path=largest[0].path,
        hint=f"add {largest[0].path} to {IGNORE_FILE} and let the script fetch its data itself",
    )


def _read(one: _Found) -> bytes:
    try:
        return one.file.read_bytes()
    except OSError as error:
        raise _unreadable(one.path, error) from error


def _unreadable(path: str, error: OSError) -> BundleError:
    return BundleError(
        f"{path}: cannot be read ({error.strerror or error})",
        path=path,
        hint=f"make it readable, or add {path} to {IGNORE_FILE}",
    )
