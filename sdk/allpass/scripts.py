"""What can be seen of a script before it is sent: that it is one, that Python can read it, and what it imports."""

from __future__ import annotations

import ast
import difflib
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from allpass.errors import BundleError

SUFFIXES = (".py", ".sh")
PYTHONS = frozenset({"python", "python3"})
_RUN_SCRIPTS = PYTHONS | {"bash", "sh", "torchrun", "accelerate", "deepspeed"}
_MOST_FILES = 200
_MOST_BYTES = 1_000_000
# What machines have by themselves, and what the usual packages bring along.
_WITH_MACHINES = {"allpass", "torch", "numpy", "transformers", "peft", "accelerate", "safetensors"}
_BROUGHT = {
    "transformers": "numpy yaml tqdm requests regex huggingface_hub tokenizers safetensors packaging filelock",
    "datasets": "numpy yaml tqdm requests pandas pyarrow dill xxhash fsspec aiohttp multiprocess huggingface_hub",
    "accelerate": "numpy yaml torch psutil huggingface_hub safetensors packaging",
    "peft": "numpy yaml tqdm torch transformers accelerate huggingface_hub safetensors packaging psutil",
    "trl": "torch transformers accelerate datasets numpy rich",
    "torch": "numpy sympy networkx jinja2 fsspec filelock typing_extensions",
    "torchvision": "numpy PIL torch",
    "scikit-learn": "numpy scipy joblib threadpoolctl",
    "pandas": "numpy dateutil pytz",
    "wandb": "yaml requests click psutil",
    "unsloth": "torch transformers peft trl datasets accelerate bitsandbytes unsloth_zoo",
}
# A module, and the package that has it, where they differ.
_PACKAGES = {
    "PIL": "pillow", "attr": "attrs", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil", "dotenv": "python-dotenv", "git": "gitpython", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip


def check_kind(path: str) -> None:
    """Raises BundleError for a file that is no script."""
    name = PurePosixPath(path).name
    if name.endswith(SUFFIXES):
        return
    hints = {
        ".ipynb": f"jupyter nbconvert --to script {name}, then its .py",
        ".json": f"a template is told with --template {name}",
        ".yaml": f"a template is told with --template {name}; a program reads it in a command: -- axolotl train {name}",
        ".yml": f"a template is told with --template {name}; a program reads it in a command: -- axolotl train {name}",
    }
    hint = hints.get(PurePosixPath(name).suffix.lower(), f"a program is started by a command: -- ./{name}")
    raise BundleError(f"{path}: is not a script (.py or .sh), and cannot be run", path=path, hint=hint)


def check_syntax(source: bytes, path: str) -> None:
    """Raises BundleError, with the line, for a Python script that Python cannot read."""
    try:
        compile(source, path, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()
        shown = f": {line[:60]}" if line else ""
        raise BundleError(
            f"{path}, line {error.lineno or 1}: {error.msg}{shown}",
            path=path,
            hint=f"mend it; if only a newer Python than {sys.version_info[0]}.{sys.version_info[1]} reads it: "
            f"allpass run . -- python {path}",
        ) from error
    except ValueError as error:
        raise BundleError(f"{path}: is not Python source ({error})", path=path, hint="save it as UTF-8") from error


def check_command(command: Sequence[str], paths: Collection[str]) -> None:
    """Raises BundleError where the script that a command begins with is not among the files that are sent."""
    script = script_of(command)
    if script is None or script.startswith("/") or os.path.normpath(script).replace("\\", "/") in paths:
        return
    near = difflib.get_close_matches(script, sorted(paths), n=1)
    fixed = " ".join(near[0] if word == script else word for word in command) if near else None
    raise BundleError(
        f"command: {script} is not among the {len(paths)} files that are sent", path=script,
        hint=f"allpass run . -- {fixed}" if fixed else "run it from the folder that has it",
    )  # fmt: skip


def script_of(command: Sequence[str]) -> str | None:
    """The script that a command line runs, where that can be seen."""
    first, *rest = command
    if first.startswith("./"):
        return first
    if first not in _RUN_SCRIPTS:
        return None
    for word in rest:
        if word in ("-m", "-c", "--module"):
            return None
        if word.endswith(SUFFIXES) and "=" not in word:
            return word
    return None


def unknown_imports(script: Path, requirements: Collection[str]) -> list[tuple[str, str]]:
    """Modules that a script and its neighbours import and that neither Python, nor the folder, nor a package named in
    `requirements`, nor a usual machine has: each with the package that probably has it. A guess, for a warning."""
    have = set(sys.stdlib_module_names) | _WITH_MACHINES
    for text in requirements:
        name = canonicalize_name(Requirement(text).name)
        have |= {name.replace("-", "_"), *_BROUGHT.get(name, "").split()}
    named = {canonicalize_name(Requirement(text).name) for text in requirements}
    found: dict[str, str] = {}
    for module in _imported(script):
        package = package_of(module)
        if module not in have and canonicalize_name(package) not in named and not _brought(module, named):
            found.setdefault(module, package)
    return list(found.items())


def package_of(module: str) -> str:
    """The package that probably has a module."""
    return _PACKAGES.get(module, module.replace("_", "-"))


def _brought(module: str, named: Collection[str]) -> bool:
    """Packages often have several modules, named after them."""
    plain = module.lower().replace("_", "-")
    return any(plain.startswith(name) or name.startswith(f"{plain}-") or name == f"py{plain}" for name in named)


def _imported(script: Path) -> Iterator[str]:
    home, todo, seen = script.parent, [script], {script}
    while todo and len(seen) < _MOST_FILES:
        file = todo.pop(0)
        try:
            if file.stat().st_size > _MOST_BYTES:
                continue
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        for module in _modules(tree.body):
            first = module.partition(".")[0]
            own = _own_files(home, module)
            todo.extend(one for one in own if one not in seen)
            seen.update(own)
            if not own and not _is_own(home, first):
                yield first


def _modules(body: list[ast.stmt]) -> Iterator[str]:
    """What is imported when the file is loaded. What stands in a `try` may be missing."""
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            yield statement.module
        elif isinstance(statement, ast.With):
            yield from _modules(statement.body)


def _own_files(home: Path, module: str) -> list[Path]:
    base = home.joinpath(*module.split("."))
    return [one for one in (base.with_name(f"{base.name}.py"), base / "__init__.py") if one.is_file()]


def _is_own(home: Path, name: str) -> bool:
    return (home / name).is_dir() or any(home.glob(f"{re.escape(name)}.*"))
