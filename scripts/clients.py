"""Makes the environments in which `./allpass test clients` runs scripts with other people's libraries.

    .venv/bin/python scripts/clients.py            # all of tests/clients/clients.toml
    .venv/bin/python scripts/clients.py wandb      # one
    .venv/bin/python scripts/clients.py --pins     # what they are to be pinned to, for scripts/pin.sh

Each is a virtual environment in the folder `clients` of the one that this runs in, made once and again when its pins
change. It sees what is installed there, so that torch is neither downloaded nor kept twice. Says what it could not
install, and fails then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = Path(os.environ.get("ALLPASS_VENV") or sys.prefix) / "clients"
PINS = ROOT / "tests" / "clients" / "clients.toml"
CONSTRAINTS = (ROOT / "constraints.txt", ROOT / "constraints-clients.txt")
_SHARED = "allpass-shared.pth"


def families() -> dict[str, list[str]]:
    """The packages of each environment, pinned."""
    with PINS.open("rb") as file:
        return {name: list(told["pins"]) for name, told in tomllib.load(file).items()}


def make(name: str, packages: list[str]) -> str | None:
    """An environment that has them; in words, why it could not be made."""
    folder = ENVIRONMENTS / name
    stamp, wanted = folder / ".installed", _wanted(packages)
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    print(f"Installing {', '.join(packages)} into {folder}", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, symlinks=True)
    python = folder / "bin" / "python"
    shared = sysconfig.get_path("purelib")
    _site_packages(python).joinpath(_SHARED).write_text(f"import site; site.addsitedir({shared!r})\n")
    limits = [word for file in CONSTRAINTS for word in ("--constraint", str(file))]
    pip = [sys.executable, "-P", "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    done = subprocess.run([*pip, "--quiet", *limits, *packages], capture_output=True, text=True, check=False)  # noqa: S603 - our own pins
    if done.returncode != 0:
        return done.stderr.strip() or f"pip ended with code {done.returncode}"
    stamp.write_text(wanted)
    return None


def _wanted(packages: list[str]) -> str:
    content = "\n".join([*packages, sysconfig.get_path("purelib"), *(file.read_text() for file in CONSTRAINTS)])
    return sha256(content.encode()).hexdigest()


def _site_packages(python: Path) -> Path:
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())  # noqa: S603 - as made above


def main(names: list[str]) -> int:
    known = families()
    if names == ["--pins"]:
        print("\n".join(sorted({package for packages in known.values() for package in packages})))
        return 0
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"error: no client is named {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = {name: why for name in names or known if (why := make(name, known[name])) is not None}
    for name, why in failed.items():
        print(
            f"error: {', '.join(known[name])} could not be installed:\n  " + why.replace("\n", "\n  "), file=sys.stderr
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
