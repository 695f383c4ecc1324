"""The process of a run that stands by: loads the libraries that the user's script imports, and waits.

A program of its own, run by the job's Python as the job's user: `warm.py READY SCRIPT WORDS...`. The file READY is made
when all is loaded. No line of the user's code runs before one line of JSON has come through standard input:
`{"environ": {...}}`, what the script finds in its environment besides what is there. Then the script runs in this
process as if Python had been started with it. Where something that was loaded would stand in the way of a module of
the user's own, Python is started anew instead.

A **spare** is such a process without a script of anybody's: ALLPASS_AHEAD holds parameters of the built-in recipe,
whose trainer and base weights are loaded instead. Its order holds the whole environment, and where and what to run:
`{"environ": {...}, "cwd": ..., "argv": [...]}`.

What is loaded is read from the import statements at the top of the script and of the user's modules that it imports;
those modules themselves are not loaded, and neither is our library, which looks at the environment.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

NOT_AHEAD = {"allpass", "__future__", "__main__"}
MOST_FILES = 200


def main() -> None:
    ready, *argv = sys.argv[1:]
    parameters = os.environ.pop("ALLPASS_AHEAD", None)
    if parameters is None:
        _load(_wanted(argv[0], _home(argv[0])))
    else:
        _load_recipe(json.loads(parameters))
    with open(ready, "w"):  # noqa: PTH123 - pathlib is not loaded here
        pass
    order = _await_order()
    if parameters is not None:
        os.environ.clear()
        os.chdir(order["cwd"])
        argv = order["argv"]
        _forget_places()
    os.environ.update(order["environ"])
    script, home = argv[0], _home(argv[0])
    sys.argv[:] = argv
    sys.path[0] = home
    if _in_the_way(home):
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - ourselves or what we were told to run
    _become(script)


def _home(script: str) -> str:
    return os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - loads nothing that the script does not


def _load_recipe(parameters: Dict[str, Any]) -> None:
    """What cannot be loaded is left to the job, which says what is wrong."""
    try:
        base = importlib.import_module("workers.trainer.base")
        base.load_ahead(parameters)
    except Exception:  # of whatever library
        return


def _forget_places() -> None:
    """What libraries have remembered of the environment that this process had."""
    loaded = sys.modules.get("tempfile")
    if loaded is not None:
        loaded.tempdir = None  # type: ignore[attr-defined]  # of the standard library


def _await_order() -> Dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        block = os.read(0, 65536)
        if not block:
            sys.exit(1)  # we are not needed
        data += block
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    order: Dict[str, Any] = json.loads(data)
    return order


def _wanted(script: str, home: str) -> List[Tuple[str, Optional[str]]]:
    """Modules, and names to take from them, in the order of the statements."""
    found: List[Tuple[str, Optional[str]]] = []
    todo = [script]
    seen: Set[str] = set()
    while todo and len(seen) < MOST_FILES:
        path = todo.pop(0)
        if path in seen:
            continue
        seen.add(path)
        for module, name in _imports(path):
            own = _own_file(home, module)
            if own is not None:
                todo.append(own)
            elif module.partition(".")[0] not in NOT_AHEAD and not _is_own(home, module):
                found.append((module, name))
    return found


def _imports(path: str) -> Iterator[Tuple[str, Optional[str]]]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
            tree = ast.parse(file.read(), path)
    except (OSError, SyntaxError, ValueError):
        return
    for statement in _at_the_top(tree.body):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name, None
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            for alias in statement.names:
                yield statement.module, alias.name


def _at_the_top(body: List[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the file is loaded: not those of functions and classes."""
    for statement in body:
        only_for_checkers = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test)
        if isinstance(statement, (ast.Try, ast.With, ast.If)) and not only_for_checkers:
            yield from _at_the_top(statement.body)
        else:
            yield statement


def _load(wanted: List[Tuple[str, Optional[str]]]) -> None:
    """What cannot be loaded is left to the script, which may not need it, or says what is wrong."""
    for module, name in wanted:
        try:
            loaded = importlib.import_module(module)
            if name is not None and name != "*":
                getattr(loaded, name, None)
        except Exception:  # noqa: S112 - of whatever library
            continue


def _own_file(home: str, module: str) -> Optional[str]:
    base = os.path.join(home, *module.split("."))  # noqa: PTH118 - pathlib is not loaded here
    for path in (base + ".py", os.path.join(base, "__init__.py")):  # noqa: PTH118 - pathlib is not loaded here
        if os.path.isfile(path):  # noqa: PTH113 - pathlib is not loaded here
            return path
    return None


def _is_own(home: str, module: str) -> bool:
    """Whether the user's folder has a module or package of that name, whatever it is made of."""
    first = module.partition(".")[0]
    # Pathlib is not loaded here.
    return any(name.partition(".")[0] == first for name in os.listdir(home))  # noqa: PTH208


def _in_the_way(home: str) -> bool:
    """A module that is loaded hides the user's own of the same name, which Python would have taken."""
    own: Set[str] = {name.partition(".")[0] for name in os.listdir(home)}  # noqa: PTH208 - pathlib is not loaded here
    return any(name in own for name in sys.modules if name != "__main__")


def _become(script: str) -> None:
    """Run the script as `__main__`, and show its errors without a trace of us."""
    path = os.path.abspath(script)  # noqa: PTH100 - pathlib is not loaded here
    names: Dict[str, Any] = sys.modules["__main__"].__dict__
    show, leave, own = sys.excepthook, sys.exit, builtins  # what we need of ours when our names are gone
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
        source = file.read()
    names.clear()
    names.update(__name__="__main__", __file__=path, __builtins__=own, __doc__=None)
    names.update(__package__=None, __spec__=None, __loader__=None, __cached__=None)
    try:
        exec(compile(source, path, "exec"), names)  # noqa: S102 - it is what we are for
    except Exception as error:
        trace = error.__traceback__
        beyond_us = None if trace is None else trace.tb_next
        show(type(error), error.with_traceback(beyond_us), beyond_us)
        leave(1)


if __name__ == "__main__":
    main()
