"""The agent as one file: a zipapp with the agent and the part of the SDK that user code may import anywhere."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import sys
import zipfile
from pathlib import Path
from typing import Iterable, List, Tuple

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = b"import sys\n\nfrom workers.agent.__main__ import main\n\nsys.exit(main())\n"
_PYC_HEAD = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little")  # a hash follows, which nobody checks
# Later formats say which objects are shared, and that depends on what else the building process has loaded. From
# 3.14 on, code holds slices, which this one cannot write.
_MARSHAL_VERSION = 2 if sys.version_info < (3, 14) else marshal.version
_RECIPE = (
    "__init__",
    "chat",
    "chat_template",
    "checks",
    "chunks",
    "encoded",
    "encoding",
    "lengths",
    "libraries",
    "mixtures",
    "settings",
    "tracked_run",
    "travelling",
)
_NEEDED = ("errors.py", *(f"recipe/{name}.py" for name in _RECIPE))  # by the trainer
_SHEBANG = b"#!/usr/bin/env python3\n"


def packed_agent() -> bytes:
    """The agent.

    The same sources, built by the same Python, give the same bytes on every machine (nothing is compressed:
    compressors differ). Each module lies there as bytecode too, which that version of Python starts from in a third
    of the time; every other version finds that it is not for it, and takes the source beside it.
    """
    return zipapp(_contents())


def zipapp(contents: Iterable[Tuple[str, bytes]]) -> bytes:
    """A program of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(contents):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return _SHEBANG + buffer.getvalue()


def build_zipapp(target: Path) -> str:
    """Write the agent to `target`, whole or not at all, and return its sha256."""
    data = packed_agent()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.write_bytes(data)
    part.chmod(0o755)
    part.replace(target)
    return hashlib.sha256(data).hexdigest()


def library_files() -> List[Tuple[str, bytes]]:
    """What user code may import: the standard-library-only part of the SDK, the built-in recipe's trainer, and what
    answers for models. By path below the folder that goes on PYTHONPATH.

    The SDK is found beside the sources (sdk/allpass), else where it is installed. Raises FileNotFoundError.
    """
    home, workers = _sdk(), Path(__file__).resolve().parents[1]
    parts = [file for part in ("hooks", "training") for file in sorted((home / part).rglob("*.py"))]
    files = [home / "__init__.py", *(home / name for name in _NEEDED), *parts]
    found = [(f"allpass/{file.relative_to(home).as_posix()}", file.read_bytes()) for file in files]
    # Without an __init__.py of its own, `workers` hides no package of that name that the user's code may have.
    shipped = [file for part in ("serving", "trainer") for file in sorted((workers / part).glob("*.py"))]
    return [*found, *((f"workers/{file.parent.name}/{file.name}", file.read_bytes()) for file in shipped)]


def _contents() -> List[Tuple[str, bytes]]:
    home = Path(__file__).resolve().parent
    modules = [("__main__.py", _MAIN), ("workers/__init__.py", b"")]
    modules += [(f"workers/agent/{file.name}", file.read_bytes()) for file in home.glob("*.py")]
    found = [*modules, *((f"{name}c", bytecode(name, source)) for name, source in modules)]
    found += [(f"lib/{name}", content) for name, content in library_files()]
    return found


def bytecode(name: str, source: bytes) -> bytes:
    """A .pyc of `source` for the running Python, marked as not to be compared with any source file."""
    code = compile(source, name, "exec", dont_inherit=True)
    return _PYC_HEAD + importlib.util.source_hash(source) + marshal.dumps(code, _MARSHAL_VERSION)


def _sdk() -> Path:
    beside = Path(__file__).resolve().parents[2] / "sdk" / "allpass"
    if (beside / "__init__.py").is_file():
        return beside
    spec = importlib.util.find_spec("allpass")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / "__init__.py").is_file():
            return Path(place)
    raise FileNotFoundError("the SDK (allpass) is neither beside the agent's sources nor installed")


if __name__ == "__main__":
    print(build_zipapp(Path(sys.argv[1])))
