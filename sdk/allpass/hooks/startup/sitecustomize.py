"""Run by Python itself when it starts, in the processes of a job: an unchanged training script becomes movable.

Agents put this folder on PYTHONPATH. All that happens here is that Python is asked to tell of a few modules: when a
script loads one of them, the method that trains is wrapped, and what is to be done is loaded when it is called (see
`allpass.hooks`). A script that loads none of them pays for one look into a table at each import.

Nothing here may ever harm a script. It fails open; a `sitecustomize` of the user's own, the system's or the
environment's runs as it would have without this one; and this folder does not stay on `sys.path`. Python does not even
look here when it is started with -S, -I or -E. ALLPASS_HOOKS=off turns it off.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `typing`, which is not loaded here: every Python of a job pays for what is
if TYPE_CHECKING:
    from typing import Any, Optional

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not loaded here
_LIBRARY = os.path.dirname(os.path.dirname(_FOLDER))  # noqa: PTH120 - the package
_OFF = ("off", "0", "no", "false")
_HOOKED = {  # when this module is loaded: the class, if any, its method or the function, and what serves it
    "transformers.trainer": ("Trainer", "train", "allpass.hooks.trainer"),
    "lightning.pytorch.trainer.trainer": ("Trainer", "fit", "allpass.hooks.lightning_trainer"),
    "pytorch_lightning.trainer.trainer": ("Trainer", "fit", "allpass.hooks.lightning_trainer"),
    "accelerate.accelerator": ("Accelerator", "__init__", "allpass.hooks.accelerator"),
    "wandb.sdk.wandb_init": ("", "init", "allpass.hooks.wandb_runs"),
    "mlflow.tracking.client": ("MlflowClient", "create_run", "allpass.hooks.mlflow_runs"),
}


class _Finder:
    """First of the finders. It finds nothing by itself, but learns when one of the modules is loaded, and by whom."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _HOOKED:
            return None
        try:
            spec = self._find(name, path, target)
            if spec is not None and spec.loader is not None:
                _tell_when_loaded(name, spec.loader)
        except Exception:  # the others are asked again, by Python: what they raise is theirs
            return None
        return spec

    def _find(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None


def _tell_when_loaded(name: str, loader: Any) -> None:
    """The loader stays what it is: of it, one method of this one object is replaced."""
    load = loader.exec_module

    def exec_module(module: Any) -> None:
        load(module)
        if getattr(module, "__name__", None) == name:
            try:
                _wrap(module, *_HOOKED[name])
            except Exception as error:
                _say("%s is as it was, for it cannot be wrapped: %r" % (name, error))

    loader.exec_module = exec_module


def _wrap(module: Any, owner_name: str, method: str, hook: str) -> None:
    owner = getattr(module, owner_name, None) if owner_name else module
    original = getattr(owner, "__dict__", {}).get(method)
    if not callable(original) or getattr(original, "is_allpass_hook", False):
        return
    import functools

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        serve = _load(hook)
        return original(*args, **kwargs) if serve is None else serve(original, args, kwargs)

    hooked.is_allpass_hook = True  # type: ignore[attr-defined]
    setattr(owner, method, hooked)


def _load(hook: str) -> Any:
    """What serves the call; None where it is not wanted, or cannot be loaded."""
    if not _is_on():
        return None
    try:
        if not _is_ours():
            _say("the script has a module of its own named allpass, so it is not moved by itself")
            return None
        import importlib

        return importlib.import_module(hook).serve
    except Exception as error:
        _say("the hook cannot be loaded, so the training is not moved by itself: %r" % (error,))
        return None


def _is_ours() -> bool:
    """Whether `import allpass` means the library beside this file. Nothing is loaded: a stranger's may do anything."""
    if "allpass" in sys.modules:
        file: Optional[str] = getattr(sys.modules["allpass"], "__file__", None)
    else:
        import importlib.util

        found = importlib.util.find_spec("allpass")
        file = None if found is None else found.origin
    return file is not None and os.path.realpath(file).startswith(os.path.realpath(_LIBRARY) + os.sep)


def _is_on() -> bool:
    return "ALLPASS_JOB_ID" in os.environ and os.environ.get("ALLPASS_HOOKS", "").strip().lower() not in _OFF


def _say(text: str) -> None:
    try:
        os.write(2, f"allpass: {text}\n".encode("utf-8", "replace"))  # nothing is left in a buffer of the script's
    except OSError:
        return


def _step_aside() -> None:
    """Load the `sitecustomize` that would have been loaded, in our place. That there is none is what Python is told."""
    sys.path[:] = [one for one in sys.path if os.path.abspath(one or os.curdir) != _FOLDER]  # noqa: PTH100
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


if _is_on():
    sys.meta_path.insert(0, _Finder())
if __name__ == "sitecustomize":
    _step_aside()
