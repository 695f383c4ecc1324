"""What a script over `accelerate` saves and loads by itself, followed from its first step to its last.

A folder of `save_state` is complete when the script computes its next gradient: by then it has written beside it what
it wants. So it is announced there, and there the script leaves, if it was asked to. Of several processes each notes
when it is through, in files, for who saves is the script's to say and none of them may wait for the others for good.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

from allpass.hooks import kept, leaving
from allpass.hooks.failing_open import FailingOpen
from allpass.hooks.instead import Instead
from allpass.hooks.looks import Looks, names
from allpass.hooks.trainer import say
from allpass.training.checkpoints import link_tree
from allpass.training.session import EXIT_STOPPED, Resume, Session

OWN = "allpass-own"  # in a checkpoint: below it, the script's folder by its path from the code on. The agent knows it
_PLACE = ".accelerate"  # below the checkpoint directory: what several processes note
_TOGETHER_S = 10.0  # that one process waits for the others, once it is to leave
_MOST_STEPS = 2  # after which all processes must have been through
_REPORT_S = 10.0
_NUMBER = re.compile(r"([0-9]+)(?=[^/]*$)")


class States:
    """Follows the states of `accelerator`, in a script whose files are in the folder `code`."""

    def __init__(self, accelerator: Any, code: Path) -> None:
        self._accelerator = accelerator
        self._code = Path(os.path.realpath(code))
        self._session = Session()
        self._open = FailingOpen("accelerate's hook")
        self._looks = Looks(self._code)
        self._instead = Instead(accelerator)
        self._resume: "Optional[Resume]" = None  # what was put back, until it is loaded
        self._has_loaded = False  # what was put back, or what it found by itself
        self._asks_for_newest = False  # of the folders that `accelerate` names
        self._has_begun = False
        self._counts = False  # it takes its steps before us
        self._steps = 0
        self._least = 0  # the step that this run begins with
        self._saves = 0
        self._pending: "Optional[Tuple[Path, int]]" = None  # saved at this step, to be announced
        self._moments: "List[float]" = []  # of the last two saves
        self._told_s = time.monotonic()
        self._leaving = leaving.Leaving(self._comes_soon)

    def begin(self) -> None:
        self._open(self._find, None)
        self._instead.put("load_state", self._load_state(self._accelerator.load_state))
        self._instead.put("save_state", self._save_state(self._accelerator.save_state))
        self._instead.put("backward", self._backward(self._accelerator.backward))

    # How it begins.

    def _find(self) -> None:
        found = self._session.resume()
        if found is not None and (found.path / OWN).is_dir():
            self._resume = found
            self._least = found.step

    def _load_state(self, original: "Callable[..., Any]") -> "Callable[..., Any]":
        def load_state(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("input_dir")
            self._asks_for_newest = self._asks_for_newest or given is None
            result = original(*args, **kwargs)
            self._open(lambda: self._loaded(given), None)
            return result

        return load_state

    def _loaded(self, given: Any) -> None:
        if self._resume is None:
            return
        folder = Path(given) if given is not None else _newest_of(self._accelerator)
        if not (self._resume.path / OWN / self._inside(folder)).is_dir():
            return
        if given is None:
            _go_on_counting(self._accelerator, folder)
        self._steps, self._has_loaded = self._resume.step, True

    def _begins_to_train(self) -> None:
        self._has_begun = True
        self._looks.end()
        if names(self._code, "import allpass", "from allpass"):
            self._give_up("")  # it knows of us, and counts its steps itself
            return
        optimizer: Any = next((getattr(one, "optimizer", None) for one in self._accelerator._optimizers), None)
        if not hasattr(optimizer, "register_step_post_hook"):
            self._give_up("its optimizer does not tell of its steps")
        elif self._resume is not None and not self._has_loaded:
            why = (
                f"it was given back what it had saved at step {self._resume.step}, in the same place, and has begun "
                "again: a script that is to be moved looks for the newest when it starts, and loads it"
            )
            if self._is_first:
                self._session.tell(refused=why)
            self._give_up(why)
        else:
            optimizer.register_step_post_hook(lambda *_: self._open(self._stepped, None))
            self._counts = True

    # Each step.

    def _stepped(self) -> None:
        self._steps += 1
        if self._is_first and time.monotonic() - self._told_s >= _REPORT_S:
            self._told_s = time.monotonic()
            self._session.report(self._steps)

    def _backward(self, original: "Callable[..., Any]") -> "Callable[..., Any]":
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._has_begun:
                self._open(self._begins_to_train, None)
            if self._pending is not None and self._open(self._announced, False) and self._leaving.is_asked:
                self._open(self._wait_for_first, None)
                sys.stdout.flush()
                raise SystemExit(EXIT_STOPPED)
            return original(*args, **kwargs)

        return backward

    # What it saves.

    def _save_state(self, original: "Callable[..., Any]") -> "Callable[..., Any]":
        def save_state(*args: Any, **kwargs: Any) -> Any:
            given: Any = args[0] if args else kwargs.get("output_dir")
            is_simple = given is not None and self._accelerator.num_processes == 1
            if is_simple:
                self._open(lambda: kept.unshare(Path(given)), None)
            result = self._with_room(lambda: original(*args, **kwargs), is_simple=is_simple)
            self._open(lambda: self._saved(given if result is None else result), None)
            return result

        return save_state

    def _with_room(self, save: "Callable[[], Any]", *, is_simple: bool) -> Any:
        """What we keep must not be what fills the disk. Several processes cannot begin again by themselves, nor can
        folders that `accelerate` names."""
        try:
            return save()
        except Exception as error:
            if not is_simple or not kept.is_full(error) or not self._session.make_room():
                raise
        return save()

    def _saved(self, folder: Any) -> None:
        self._saves += 1
        self._moments = [*self._moments[-1:], time.monotonic()]
        if self._counts and folder is not None:
            self._pending = (Path(os.path.realpath(folder)), self._steps)

    def _announced(self) -> bool:
        """Whether what was saved is a checkpoint now, and all processes are through."""
        assert self._pending is not None
        folder, step = self._pending
        why = self._why_not(folder)
        if why is not None:
            self._give_up(why)
            return False
        self._note("saved", self._rank)
        if not self._is_first:
            self._pending = None
            self._leaving.listen()
            return True
        if not self._have_all("saved"):
            if self._steps - step >= _MOST_STEPS:
                self._give_up("save_state is called by one of its processes, and the random states of others are lost")
            return False
        self._pending = None
        inside = self._inside(folder)
        keep: "Callable[[Path, Path], Any]" = link_tree if self._is_left_alone(folder) else shutil.copytree
        self._session.save(step, lambda into: keep(folder, into / OWN / inside))
        self._leaving.listen()
        if self._leaving.is_asked:
            self._note("leave", 0)
        return True

    def _is_left_alone(self, folder: Path) -> bool:
        """Whether nobody writes into these files again, once they are ours, too. One process parts them from ours
        before it does; of several, one could write already while another one parts them."""
        return self._accelerator.num_processes == 1 or _number(folder) >= 0

    def _why_not(self, folder: Path) -> "Optional[str]":
        """In words, why a folder of the script's is no checkpoint of its job."""
        shown = _shown(folder, self._code)
        if self._code not in folder.parents:
            return f"it saves its states to {shown}, and only what is below the folder of its code can be put back"
        is_looked_for = self._asks_for_newest or self._looks.has_looked_for(folder)
        if self._has_loaded or (is_looked_for and names(self._code, "load_state")):
            return None
        pattern = _NUMBER.sub("*", shown)
        named = (
            f", run it with --checkpoints {pattern!r}" if "*" in pattern else ", give it three lines (training.save)"
        )
        return (
            f"it saves its states to {shown}, and did not look there for one to load when it started, so that it would "
            f"begin again. If it does go on from the newest{named}; if it does so when it is told to, tell it to"
        )

    # Several processes.

    @property
    def _rank(self) -> int:
        return int(self._accelerator.process_index)

    @property
    def _is_first(self) -> bool:
        return self._rank == 0

    def _noted(self, what: str, rank: int) -> Path:
        begun = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return self._session.checkpoint_dir / _PLACE / f"{what}-{begun}-{self._saves}-{rank}"

    def _note(self, what: str, rank: int) -> None:
        if self._accelerator.num_processes > 1:
            file = self._noted(what, rank)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def _have_all(self, what: str) -> bool:
        """Of a process that is to leave: it waits for the others, which come to the same place."""
        files = [self._noted(what, rank) for rank in range(1, self._accelerator.num_processes)]
        return _wait_for(files, _TOGETHER_S if self._leaving.is_asked else 0.0)

    def _wait_for_first(self) -> None:
        """Who leaves before the first process has announced the checkpoint would have that one killed."""
        if not self._is_first:
            _wait_for([self._noted("leave", 0)], _TOGETHER_S)

    # When it is to leave.

    def _comes_soon(self) -> bool:
        """Whether its next save is likely to come while it is waited for."""
        if self._pending is not None or len(self._moments) < 2:
            return True
        return 2 * self._moments[1] - self._moments[0] <= time.monotonic() + leaving.PATIENCE_S

    def _give_up(self, why: str) -> None:
        self._pending = None
        self._looks.end()
        self._instead.take_back()
        self._leaving.end()
        if self._is_first and why:
            say(f"this training is not moved by itself: {why}")

    def _inside(self, folder: Path) -> Path:
        return Path(os.path.realpath(folder)).relative_to(self._code)


def _wait_for(files: "List[Path]", most_s: float) -> bool:
    end_s = time.monotonic() + most_s
    while not all(file.exists() for file in files):
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.01)
    return True


def _newest_of(accelerator: Any) -> Path:
    """Which folder `load_state()` takes where folders are named by `accelerate`."""
    folders = (Path(accelerator.project_dir) / "checkpoints").iterdir()
    return max(folders, key=_number)


def _number(folder: Path) -> int:
    found = _NUMBER.search(folder.name)
    return int(found.group(1)) if found else -1


def _go_on_counting(accelerator: Any, loaded: Path) -> None:
    """Begun again, `accelerate` counts its folders from 0, and raises when it comes to one that was put back."""
    settings = accelerator.project_configuration
    settings.iteration = max(settings.iteration, _number(loaded) + 1)


def _shown(folder: Path, code: Path) -> str:
    return os.path.relpath(folder, code) if code in folder.parents else str(folder)
