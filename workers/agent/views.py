"""What a run sees of folders that are closed to its user, where its Python or its own folders lie below them.

A home that only its owner may enter stays closed: the run gets a view of its own (a mount namespace) in which an empty
folder stands in its place, with nothing in it but what the run needs. Nobody else sees that, and nothing is changed on
the disk. Used by the agent, which plans, and by `guard.py` (no import of ours), which enters. Linux only.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than all the others: a run's start waits for this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Tuple

MOST_LINKS = 40  # as in the kernel
_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
_EMPTY = "mode=0711,size=1m"


def plan(needed: Iterable[str]) -> List[Dict[str, Any]]:
    """The views that open these folders, and nothing else, to a user whom the system knows nothing of: each one what it
    covers, with the folders (`shown`) and links in it. None where every user can reach them all; a folder that is
    closed itself is left out. Raises OSError."""
    views: Dict[str, Dict[str, Any]] = {}
    for path in needed:
        real, links = _resolve(path)
        if not _is_open(real):
            continue  # nothing but its owner can change that
        for place in (real, *(link for link, _ in links)):
            cover = _closed_above(place)
            if cover is None:
                continue
            view = views.setdefault(cover, {"cover": cover, "shown": [], "links": []})
            if place == real:
                view["shown"].append(real)
            else:
                view["links"].append([place, dict(links)[place]])
    for view in views.values():
        view["shown"] = _outermost(view["shown"])
        view["links"] = [link for link in view["links"] if not _is_below(link[0], view["shown"])]
    return sorted(views.values(), key=lambda view: str(view["cover"]))


def enter(views: List[Dict[str, Any]]) -> None:
    """From now on this process, and whatever it starts, sees it so. Raises OSError where the kernel refuses."""
    if not views:
        return
    _call("unshare", _CLONE_NEWNS)
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)  # what is mounted here is nobody else's
    os.umask(0o066)
    for view in views:
        shown = [(path, os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in view["shown"]]
        _mount("allpass", view["cover"], "tmpfs", _MS_NOSUID | _MS_NODEV, _EMPTY)
        for path, folder in shown:
            os.makedirs(path, 0o711, exist_ok=True)  # noqa: PTH103 - pathlib is not loaded here
            _mount(f"/proc/self/fd/{folder}", path, None, _MS_BIND | _MS_REC)
            os.close(folder)
        for path, target in view["links"]:
            os.makedirs(os.path.dirname(path), 0o711, exist_ok=True)  # noqa: PTH103, PTH120 - as above
            os.symlink(target, path)  # noqa: PTH211 - as above
        _mount(None, view["cover"], None, _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, _EMPTY)


def homes_of(python: str) -> List[str]:
    """The folders that this interpreter lives in: its virtual environment, and the Python that was made with."""
    homes: List[str] = []
    path = os.path.abspath(python)  # noqa: PTH100 - pathlib is not loaded here
    for _ in range(MOST_LINKS):
        home = os.path.dirname(os.path.dirname(path))  # noqa: PTH120 - as above
        homes.append(home)
        homes += [os.path.dirname(folder) for folder in _made_with(home)]  # noqa: PTH120 - as above
        if not os.path.islink(path):  # noqa: PTH114 - as above
            break
        target = os.readlink(path)  # noqa: PTH115 - as above
        path = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - as above
    return list(dict.fromkeys(homes))


def _made_with(home: str) -> List[str]:
    try:
        with open(os.path.join(home, "pyvenv.cfg")) as file:  # noqa: PTH118, PTH123 - as above
            pairs = [line.partition("=") for line in file]
    except (OSError, ValueError):
        return []
    return [value.strip() for name, _, value in pairs if name.strip() == "home"]


def _resolve(path: str) -> Tuple[str, List[Tuple[str, str]]]:
    """Where a path leads, and the links on the way."""
    links: List[Tuple[str, str]] = []
    todo, here = [part for part in path.split("/") if part], "/"
    while todo:
        part = todo.pop(0)
        if part == "..":
            here = os.path.dirname(here)  # noqa: PTH120 - pathlib is not loaded here
            continue
        there = os.path.join(here, part)  # noqa: PTH118 - as above
        if not os.path.islink(there):  # noqa: PTH114 - as above
            here = there
            continue
        target = os.readlink(there)  # noqa: PTH115 - as above
        links.append((there, target))
        if len(links) > MOST_LINKS:
            raise OSError(f"{path} is a circle of links")
        todo = [word for word in target.split("/") if word not in ("", ".")] + todo
        if target.startswith("/"):
            here = "/"
    return here, links


def _closed_above(path: str) -> "str | None":
    """The highest folder on the way to `path` that not everybody may pass through."""
    parts = [part for part in path.split("/") if part]
    for count in range(1, len(parts)):
        folder = "/" + "/".join(parts[:count])
        if not _is_open(folder):
            return folder
    return None


def _is_open(folder: str) -> bool:
    return bool(os.stat(folder).st_mode & stat.S_IXOTH)  # noqa: PTH116 - pathlib is not loaded here


def _outermost(paths: List[str]) -> List[str]:
    found: List[str] = []
    for path in sorted(set(paths)):
        if not _is_below(path, found):
            found.append(path)
    return found


def _is_below(path: str, folders: List[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _mount(source: "str | None", target: str, kind: "str | None", flags: int, options: str = "") -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _call("mount", *texts, flags, os.fsencode(options) if options else None)


def _call(name: str, *arguments: Any) -> None:
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if name == "mount":
        function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} was refused: {os.strerror(number)}")
