"""Which of the requirements in the first argument (a JSON list) this Python's environment does not satisfy.

A program of its own: it is run by the Python in question. Prints `{"missing": [...], "site": [...]}`, where `site`
lists that environment's package folders; `missing` is null when requirements cannot be judged here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import site
import sys
from typing import Any, List, Optional, Tuple

DEEPEST = 20


def main() -> int:
    print(json.dumps({"missing": missing(json.loads(sys.argv[1])), "site": site.getsitepackages()}))
    return 0


def missing(requirements: List[str]) -> Optional[List[str]]:
    parser = _parser()
    if parser is None:
        return None
    return [text for text in requirements if not _holds(parser, text, ("",), 0)]


def _parser() -> Any:
    for name in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _holds(parser: Any, text: str, extras: Tuple[str, ...], depth: int) -> bool:
    try:
        requirement = parser.Requirement(text)
    except parser.InvalidRequirement:
        return False
    if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
        return True
    try:
        distribution = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    version = distribution.version
    if requirement.url or not version or not requirement.specifier.contains(version, prereleases=True):
        return False
    if not requirement.extras or depth >= DEEPEST:
        return True
    wanted = tuple(requirement.extras)
    own = [child for child in distribution.requires or [] if _is_of_extra(parser, child, wanted)]
    return all(_holds(parser, child, wanted, depth + 1) for child in own)


def _is_of_extra(parser: Any, text: str, wanted: Tuple[str, ...]) -> bool:
    """Whether an extra asks for it: what a package always needs was installed along with it."""
    marker = parser.Requirement(text).marker
    if marker is None or marker.evaluate({"extra": ""}):
        return False
    return any(marker.evaluate({"extra": extra}) for extra in wanted)


if __name__ == "__main__":
    sys.exit(main())
