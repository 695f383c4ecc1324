"""Whether a script looks for checkpoints of its own when it starts.

Folders that it writes are worth nothing to a job whose script would not go on from them: moved, it would begin again.
Nobody but the script knows, and it tells by what it does. One that is to go on lists the folder in which it keeps them
before it takes a step (`glob`, `os.listdir`, `os.scandir`), or asks whether the very one is there (`os.path.exists`),
and somewhere in its files it loads what it finds. Where either is missing, as it is where going on is an option that
was not given, nothing is believed.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

_LISTS = ("os.listdir", "os.scandir")
_GLOBS = ("glob.glob", "pathlib.Path.glob", "pathlib.Path.rglob")
_ASKS = ((os.path, "exists"), (os.path, "isdir"), (os.path, "isfile"), (Path, "exists"), (Path, "is_dir"))
_MAGIC = "*?["
_MOST_BYTES = 2 * 1024 * 1024  # of a file of the script
_STANDARD = tuple(f"{os.path.realpath(sysconfig.get_path(name))}{os.sep}" for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")


class Looks:
    """From when it is made until `end`, of a script whose files are in the folder `code`."""

    def __init__(self, code: Path) -> None:
        self._code = os.path.realpath(code)
        self._here = Path.cwd()
        self._folders: "Set[str]" = set()  # that were listed
        self._asked: "Set[str]" = set()
        self._whose: "Dict[str, str]" = {}  # files of code: the "script", the "library" of Python's own, "others"
        self._before: "List[Tuple[Any, str, Any]]" = []
        self._is_over = False
        for owner, name in _ASKS:
            original = vars(owner).get(name)
            if original is not None:
                self._before.append((owner, name, original))
                setattr(owner, name, self._asks(original))
        sys.addaudithook(self._hear)  # nothing takes one back

    def end(self) -> None:
        self._is_over = True
        while self._before:
            owner, name, original = self._before.pop()
            setattr(owner, name, original)

    def has_looked_for(self, checkpoint: Path) -> bool:
        """Whether it has asked for this very folder, or listed the one that it is in: or one above that, but for the
        folder of the code, which is listed for many reasons."""
        exact = os.path.realpath(checkpoint)
        if any(asked == exact or asked.startswith(exact + os.sep) for asked in self._asked):
            return True
        around = [os.path.realpath(parent) for parent in Path(exact).parents]
        inside = [parent for parent in around if parent.startswith(self._code + os.sep)]
        return any(parent in self._folders for parent in (*inside, around[0]))

    def _asks(self, original: "Callable[..., bool]") -> "Callable[..., bool]":
        @functools.wraps(original)
        def asks(path: Any, *args: Any, **kwargs: Any) -> bool:
            self._note(self._asked, lambda: path)
            return original(path, *args, **kwargs)

        return asks

    def _hear(self, event: str, args: "Tuple[Any, ...]") -> None:
        if self._is_over or (event not in _LISTS and event not in _GLOBS):
            return
        self._note(self._folders, lambda: _listed(event, args))

    def _note(self, where: "Set[str]", path: "Callable[[], Any]") -> None:
        try:
            if not self._is_over and self._is_the_scripts(sys._getframe(2)):
                where.add(os.path.realpath(path()))
        except Exception:  # whatever it is: it was none of a script's checkpoints
            return

    def _is_the_scripts(self, frame: Any) -> bool:
        """Whether a line of the script has led here, by nothing but the standard library: importing and deleting are
        other reasons to look."""
        while frame is not None:
            name: str = frame.f_code.co_filename
            if name not in self._whose:
                self._whose[name] = self._judged(name)
            if self._whose[name] != "library":
                return self._whose[name] == "script"
            frame = frame.f_back
        return False

    def _judged(self, name: str) -> str:
        path = os.path.realpath(self._here / name)
        if path.startswith(self._code + os.sep):
            return "script"
        is_pythons = path.startswith(_STANDARD) and not any(part in path for part in _INSTALLED)
        is_no_look = name.startswith("<") or name.endswith(("shutil.py", "tempfile.py"))
        return "library" if is_pythons and not is_no_look else "others"


def _listed(event: str, args: "Tuple[Any, ...]") -> str:
    if event in _LISTS:
        return os.fspath(args[0]) if args[0] is not None else os.curdir
    if event == "glob.glob":
        folder = os.fspath(args[0])
        while any(sign in folder for sign in _MAGIC):
            folder = os.path.dirname(folder)  # noqa: PTH120 - of text
        return folder or os.curdir
    folder = os.fspath(args[0])
    plain = [*_plain_parts(os.fspath(args[1]))]
    return os.path.join(folder, *plain)  # noqa: PTH118 - of text


def _plain_parts(pattern: str) -> "Iterator[str]":
    """The folders that a pattern names before it lets anything match."""
    for part in pattern.split("/")[:-1]:
        if any(sign in part for sign in _MAGIC):
            return
        yield part


def names(code: Path, *words: str) -> bool:
    """Whether a file of the script, as far as it is loaded, has one of these words in it."""
    own = os.path.realpath(code) + os.sep
    for module in list(sys.modules.values()):
        file: Optional[str] = getattr(module, "__file__", None)
        path = os.path.realpath(file) if file else ""
        if path.startswith(own) and path.endswith(".py") and any(word in _content(path) for word in words):
            return True
    return False


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as text:  # noqa: PTH123 - a path of text
            return text.read(_MOST_BYTES)
    except OSError:  # modules that were made while running name files that are none
        return ""
