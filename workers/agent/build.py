"""The agent as one file: a zipapp with the agent and the part of the SDK that user code may import anywhere."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import sys
import zipfile
from pathlib import Path
from typing import List, Tuple

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = b"import sys\n\nfrom workers.agent.__main__ import main\n\nsys.exit(main())\n"
_SHEBANG = b"#!/usr/bin/env python3\n"


def build_zipapp(target: Path) -> str:
    """Write the agent to `target`, whole or not at all, and return its sha256.

    The same sources give the same bytes on every machine (nothing is compressed: compressors differ).
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(_contents()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    data = _SHEBANG + buffer.getvalue()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.write_bytes(data)
    part.chmod(0o755)
    part.replace(target)
    return hashlib.sha256(data).hexdigest()


def library_files() -> List[Tuple[str, bytes]]:
    """The standard-library-only part of the SDK, by path below the folder that goes on PYTHONPATH.

    Found beside the sources (sdk/allpass), else where the SDK is installed. Raises FileNotFoundError.
    """
    home = _sdk()
    files = [home / "__init__.py", *sorted((home / "training").rglob("*.py"))]
    return [(f"allpass/{file.relative_to(home).as_posix()}", file.read_bytes()) for file in files]


def _contents() -> List[Tuple[str, bytes]]:
    home = Path(__file__).resolve().parent
    found = [("__main__.py", _MAIN), ("workers/__init__.py", b"")]
    found += [(f"workers/agent/{file.name}", file.read_bytes()) for file in home.glob("*.py")]
    found += [(f"lib/{name}", content) for name, content in library_files()]
    return found


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
