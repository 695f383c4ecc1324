"""What Python runs at its start in a job: it makes training scripts movable, and can harm none."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[2] / "sdk"
STARTUP = LIBRARY / "allpass" / "hooks" / "startup"
TELLS = """
import json, sys
print(json.dumps({
    "hooked": any(type(one).__module__ == "sitecustomize" for one in sys.meta_path),
    "loaded": sorted(name for name in sys.modules if "allpass" in name or name == "sitecustomize"),
    "seen": [path for path in sys.path if "startup" in path],
}))
"""
TRAINER = """
class Trainer:
    def __init__(self):
        self.args, self.state = object(), None
    def train(self, {signature}):
        return ("trained", {answer})
"""
TRAINS = "from transformers.trainer import Trainer\nprint(Trainer().train({given}))\n"


def python(
    folder: Path, script: str, *flags: str, environ: dict[str, str] | None = None, path: str = ""
) -> tuple[int, str, str]:
    """A script of a job, as an agent starts it; `path`: what else is on PYTHONPATH."""
    (folder / "train.py").write_text(script)
    full = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ALLPASS"))},
        "PYTHONPATH": os.pathsep.join([str(STARTUP), str(LIBRARY), *([path] if path else [])]),
        "ALLPASS_JOB_ID": "job_1",
        "ALLPASS_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "ALLPASS_METRICS_FILE": str(folder / "metrics.jsonl"),
        **(environ or {}),
    }
    command = [sys.executable, *flags, "train.py"]
    done = subprocess.run(command, cwd=folder, env=full, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout.strip(), done.stderr


def transformers(folder: Path, content: str, version: str = "5.0.0") -> None:
    """A library of that name, of a version that nobody knows."""
    (folder / "transformers").mkdir()
    (folder / "transformers" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (folder / "transformers" / "trainer.py").write_text(content)


def test_a_script_sees_nothing_of_it(tmp_path: Path) -> None:
    """A finder is there; no module, no folder on the path."""
    assert python(tmp_path, TELLS)[1] == '{"hooked": true, "loaded": [], "seen": []}'


@pytest.mark.parametrize("flags", [("-S",), ("-I",), ("-E",), ("-I", "-S")])
def test_where_python_is_told_to_look_nowhere_it_is_not_there(tmp_path: Path, flags: tuple[str, ...]) -> None:
    code, told, _ = python(tmp_path, TELLS, *flags)
    assert code == 0
    assert '"hooked": false' in told


@pytest.mark.parametrize("environ", [{"ALLPASS_HOOKS": "off"}, {"ALLPASS_HOOKS": "0"}])
def test_it_can_be_turned_off(tmp_path: Path, environ: dict[str, str]) -> None:
    assert '"hooked": false' in python(tmp_path, TELLS, environ=environ)[1]


def test_a_python_that_is_no_jobs_is_left_alone(tmp_path: Path) -> None:
    script = "import os; del os.environ['ALLPASS_JOB_ID']\nimport subprocess, sys\n"
    script += f"print(subprocess.run([sys.executable, '-c', {TELLS!r}], capture_output=True, text=True).stdout)\n"
    assert '"hooked": false' in python(tmp_path, script)[1]


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    """From PYTHONPATH, an environment or the system: in our place, as the module of that name, and found by scripts."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("WHOSE = 'mine'\nprint('begun')\n")
    script = "import sitecustomize, sys\nprint(sitecustomize.WHOSE, sitecustomize.__file__)\n"
    code, told, errors = python(tmp_path, script, path=str(own))
    assert (code, errors) == (0, "")
    assert told.split("\n") == ["begun", f"mine {own / 'sitecustomize.py'}"]


def test_the_users_own_sitecustomize_fails_as_it_would(tmp_path: Path) -> None:
    """With Python's own words, and the script runs, hooked or not."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("1 / 0\n")
    code, told, errors = python(tmp_path, TELLS, path=str(own))
    alone = python(tmp_path, TELLS, path=str(own), environ={"PYTHONPATH": str(own)})
    assert (code, errors) == (0, alone[2])
    assert "ZeroDivisionError" in errors
    assert '"hooked": true' in told


def test_a_module_of_the_scripts_own_named_sitecustomize_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("WHOSE = 'the script'\n")
    assert python(tmp_path, "import sitecustomize\nprint(sitecustomize.WHOSE)\n")[1] == "the script"


def test_usercustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "usercustomize.py").write_text("import builtins\nbuiltins.USER = 1\n")
    script = "import sys, builtins\nprint(sys.flags.no_user_site, getattr(builtins, 'USER', None))\n"
    hooked = python(tmp_path, script, path=str(tmp_path / "own"))
    alone = python(tmp_path, script, environ={"PYTHONPATH": str(tmp_path / "own")})
    assert hooked == alone


@pytest.mark.parametrize(
    ("version", "signature", "answer", "given", "printed"),
    [
        ("3.0.0", "model_path=None", "model_path", "'here'", "('trained', 'here')"),
        ("99.0.0", "*, plan=None, **more", "plan", "plan=3", "('trained', 3)"),
        ("5.0.0", "resume_from_checkpoint=None, **more", "resume_from_checkpoint", "", "('trained', None)"),
        ("5.0.0", "resume_from_checkpoint=None", "resume_from_checkpoint", "True", "('trained', True)"),
    ],
)
def test_a_version_that_is_unknown_trains_as_it_would(
    tmp_path: Path, version: str, signature: str, answer: str, given: str, printed: str
) -> None:
    """The hook says that it cannot, and that is all: also SIGTERM is what it was."""
    transformers(tmp_path, TRAINER.format(signature=signature, answer=answer), version)
    script = TRAINS.format(given=given) + "import signal\nprint(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
    code, told, errors = python(tmp_path, script)
    assert (code, told) == (0, f"{printed}\nTrue")
    assert errors.count("\n") <= 1, errors
    assert "not moved by itself" in errors


def test_what_follows_a_trackers_run_does_not_take_sigterm(tmp_path: Path) -> None:
    """Nobody would answer it in a script that trains by itself: asked to leave, it leaves as it would have. One that
    asks for what we know of the job is heard from then on."""
    (tmp_path / "wandb" / "sdk").mkdir(parents=True)
    (tmp_path / "wandb" / "__init__.py").write_text("run = None\n")
    (tmp_path / "wandb" / "sdk" / "__init__.py").touch()
    (tmp_path / "wandb" / "sdk" / "wandb_init.py").write_text(
        "class Run:\n    url = 'https://wandb.example/run'\n"
        "def init(project=None, id=None, resume=None):\n    return Run()\n"
    )
    script = "import signal\nfrom wandb.sdk.wandb_init import init\ninit(project='p')\n"
    script += "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
    script += "from allpass import training\ntraining.resume()\n"
    script += "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
    assert python(tmp_path, script) == (0, "True\nFalse", "")


@pytest.mark.parametrize("content", ["", "Trainer = 3\n", "class Trainer: pass\n", "class Trainer:\n    train = 5\n"])
def test_a_library_without_what_is_wrapped_is_as_it_was(tmp_path: Path, content: str) -> None:
    transformers(tmp_path, content)
    assert python(tmp_path, "import transformers.trainer\nprint('well')\n") == (0, "well", "")


def test_a_library_that_cannot_be_loaded_fails_as_it_would(tmp_path: Path) -> None:
    """The same error, with the user's lines in its trace."""
    transformers(tmp_path, "import no_such_thing\n")
    code, _, errors = python(tmp_path, "import transformers.trainer\n")
    assert code == 1
    assert errors.rstrip().endswith("ModuleNotFoundError: No module named 'no_such_thing'")
    code, told, _ = python(
        tmp_path, "try:\n    import transformers.nothing\nexcept ImportError as e:\n    print(e.name)\n"
    )
    assert told == "transformers.nothing"


def test_what_the_training_raises_is_the_scripts(tmp_path: Path) -> None:
    """Once, and unchanged."""
    transformers(tmp_path, TRAINER.format(signature="*given", answer="1 / 0"))
    script = (
        "from transformers.trainer import Trainer\ntry:\n    Trainer().train()\nexcept ZeroDivisionError as error:\n"
    )
    script += "    print(error, error.__context__)\n"
    assert python(tmp_path, script)[:2] == (0, "division by zero None")


def test_a_script_that_replaces_the_method_has_its_own(tmp_path: Path) -> None:
    transformers(tmp_path, TRAINER.format(signature="*given", answer="given"))
    script = "from transformers.trainer import Trainer\nTrainer.train = lambda self: 'mine'\nprint(Trainer().train())\n"
    assert python(tmp_path, script) == (0, "mine", "")


def test_a_library_that_is_loaded_again_is_wrapped_again(tmp_path: Path) -> None:
    """`importlib.reload`, and many threads that load it at once: each time exactly once."""
    transformers(tmp_path, TRAINER.format(signature="*given", answer="given"))
    script = (
        "import importlib, threading\n"
        "def load():\n"
        "    import transformers.trainer\n"
        "threads = [threading.Thread(target=load) for _ in range(20)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "import transformers.trainer\n"
        "module = importlib.reload(transformers.trainer)\n"
        "train = module.Trainer.train\n"
        "twice = hasattr(train.__wrapped__, 'is_allpass_hook')\n"
        "print(train.is_allpass_hook, twice, train.__name__, module.__loader__)\n"
    )
    code, told, errors = python(tmp_path, script)
    assert (code, errors) == (0, "")
    assert told.startswith("True False train <_frozen_importlib_external.SourceFileLoader")


def test_a_module_of_the_scripts_own_named_allpass_is_not_touched(tmp_path: Path) -> None:
    """It is not even loaded, and the training is as it was."""
    transformers(tmp_path, TRAINER.format(signature="resume_from_checkpoint=None", answer="1"))
    (tmp_path / "allpass.py").write_text("print('loaded')\n")
    code, told, errors = python(tmp_path, TRAINS.format(given=""))
    assert (code, told) == (0, "('trained', 1)")
    assert "module of its own named allpass" in errors


def test_a_library_of_ours_that_is_broken_harms_nothing(tmp_path: Path) -> None:
    """Half a release on a machine's disk: the hook cannot be loaded, and the script trains."""
    broken = tmp_path / "lib" / "allpass" / "hooks" / "startup"
    broken.mkdir(parents=True)
    (tmp_path / "lib" / "allpass" / "__init__.py").touch()
    (tmp_path / "lib" / "allpass" / "hooks" / "__init__.py").write_text("raise MemoryError\n")
    (broken / "sitecustomize.py").write_bytes((STARTUP / "sitecustomize.py").read_bytes())
    transformers(tmp_path, TRAINER.format(signature="resume_from_checkpoint=None", answer="1"))
    environ = {"PYTHONPATH": f"{broken}{os.pathsep}{tmp_path / 'lib'}"}
    code, told, errors = python(tmp_path, TRAINS.format(given=""), environ=environ)
    assert (code, told) == (0, "('trained', 1)")
    assert "MemoryError" in errors


def test_a_read_only_machine_harms_nothing(tmp_path: Path) -> None:
    """No folder that could be written, no standard error: the script trains."""
    transformers(tmp_path, TRAINER.format(signature="resume_from_checkpoint=None", answer="1"))
    nowhere: dict[str, str] = {
        "ALLPASS_CHECKPOINT_DIR": "/proc/nothing",
        "ALLPASS_METRICS_FILE": "/proc/nothing/metrics",
    }
    script = "import os\nos.close(2)\n" + TRAINS.format(given="")
    assert python(tmp_path, script, environ=nowhere)[:2] == (0, "('trained', 1)")


def test_it_costs_next_to_nothing(tmp_path: Path) -> None:
    """Less than 5 ms at the start of a Python that loads no library, of the best of several measurements. Of a
    processor: what else this machine does costs none of that."""
    (tmp_path / "empty.py").touch()

    def best_s(environ: dict[str, str]) -> float:
        took = []
        for _ in range(9):
            begun = _children_s()
            subprocess.run([sys.executable, "empty.py"], cwd=tmp_path, env={**os.environ, **environ}, check=True)
            took.append(_children_s() - begun)
        return min(took)

    without = {"PYTHONPATH": str(LIBRARY), "ALLPASS_JOB_ID": "job_1"}
    hooked = {**without, "PYTHONPATH": f"{STARTUP}{os.pathsep}{LIBRARY}"}
    assert min(best_s(hooked) - best_s(without) for _ in range(3)) < 0.005


def _children_s() -> float:
    """Of a processor, by all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
