"""The program of a host as one file: a zipapp of what joins, what starts agents, and what keeps them."""

from __future__ import annotations

from pathlib import Path

from workers.agent.build import zipapp

_MAIN = b"import sys\n\nfrom workers.host.__main__ import main\n\nsys.exit(main())\n"
_OF_AGENT = (
    "__init__",
    "api",
    "blocks",
    "config",
    "errors",
    "gpus",
    "sweep",
    "transport",
)  # what a host has in common with its agents


def packed_host() -> bytes:
    """The same sources give the same bytes on every machine, as for the agent."""
    workers = Path(__file__).resolve().parents[1]
    modules: list[tuple[str, bytes]] = [("__main__.py", _MAIN), ("workers/__init__.py", b"")]
    modules += [(f"workers/agent/{name}.py", (workers / "agent" / f"{name}.py").read_bytes()) for name in _OF_AGENT]
    for part in ("host", "machines"):
        modules += [(f"workers/{part}/{file.name}", file.read_bytes()) for file in (workers / part).glob("*.py")]
    return zipapp(modules)
