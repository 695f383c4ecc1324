"""The program that loads libraries ahead: what a script can see of it, which is nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import workers.agent.warm

PROGRAM = Path(workers.agent.warm.__file__)
TELLS = """
import json, os, sys, wave
from helper import VALUE

class Thing:
    pass

print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path[0], "main": sys.modules["__main__"].__file__,
    "value": VALUE, "given": os.environ.get("GIVEN"), "thing": Thing.__module__, "stdin": sys.stdin.read(),
    "names": sorted(name for name in globals() if not name.startswith("__")),
}))
"""


def warm(folder: Path, script: str, *, words: tuple[str, ...] = (), **files: str) -> subprocess.Popen[str]:
    """The program with a script that it has loaded the libraries of."""
    (folder / "train.py").write_text(script)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    ready = folder / "ready"
    command = [sys.executable, str(PROGRAM), str(ready), "train.py", *words]
    pipe = subprocess.PIPE
    started = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60
    while not ready.exists():
        assert time.monotonic() < deadline and started.poll() is None
        time.sleep(0.01)
    return started


def begin(started: subprocess.Popen[str], **environ: str) -> tuple[int, str]:
    told, _ = started.communicate(json.dumps({"environ": environ}) + "\n", timeout=60)
    return started.returncode, told


def cold(folder: Path, *words: str, **environ: str) -> tuple[int, str]:
    command = [sys.executable, "train.py", *words]
    full = {**os.environ, **environ}
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    done = subprocess.run(command, cwd=folder, env=full, stdin=null, stdout=pipe, stderr=pipe, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_script_sees_what_it_would_see_without_it(tmp_path: Path) -> None:
    """Arguments, names, paths, environment and input are those of `python train.py`."""
    started = warm(tmp_path, TELLS, words=("--lr", "1"), helper="VALUE = 7")
    code, told = begin(started, GIVEN="yes")
    assert (code, json.loads(told)) == (0, json.loads(cold(tmp_path, "--lr", "1", GIVEN="yes")[1]))


def test_libraries_are_loaded_before_the_order_and_no_code_of_the_user(tmp_path: Path) -> None:
    """Also those that only a module of the user's own imports; that module itself waits."""
    helper = "import decimal, pathlib\npathlib.Path('ran').touch()\n"
    started = warm(tmp_path, "import sys, helper\n", helper=helper)
    assert "_decimal" in Path(f"/proc/{started.pid}/maps").read_text()
    assert not (tmp_path / "ran").exists()
    assert begin(started)[0] == 0
    assert (tmp_path / "ran").exists()


def test_a_module_that_was_loaded_ahead_does_not_hide_the_users_own(tmp_path: Path) -> None:
    """Python is started anew, and finds the user's first, as it would have."""
    script = "import wave, statistics\nprint(statistics.WHOSE)\n"
    started = warm(tmp_path, script, statistics="WHOSE = 'mine'")
    (tmp_path / "wave.py").write_text("import statistics\n")
    assert begin(started) == (0, "mine\n")


def test_an_error_of_the_script_is_shown_as_its_own(tmp_path: Path) -> None:
    """The same text as without it, without a line about us, and the same exit code."""
    script = "def f():\n    return 1 / 0\nf()\n"
    started = warm(tmp_path, script)
    assert begin(started) == cold(tmp_path)


def test_a_library_that_cannot_be_loaded_is_left_to_the_script(tmp_path: Path) -> None:
    """A script may try several."""
    started = warm(tmp_path, "try:\n    import no_such_library\nexcept ImportError:\n    print('without')\n")
    assert begin(started) == (0, "without\n")


def test_what_is_not_needed_ends_without_running_anything(tmp_path: Path) -> None:
    """The agent closes the pipe: a move was called off."""
    started = warm(tmp_path, "print('ran')\n")
    told, _ = started.communicate(timeout=60)
    assert (started.returncode, told) == (1, "")
