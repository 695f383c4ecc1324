"""Which of the requirements in the first argument (a JSON list) this Python's environment does not satisfy.

A program of its own: it is run by the Python in question. Prints `{"missing": [...], "site": [...]}`, where `site`
lists that environment's package folders; `missing` is null when requirements cannot be judged here. With `gpus` as the
second argument also `gpus`: why its torch cannot compute on this machine's GPUs; null where it can, or has none to.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import site
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

DEEPEST = 20
GPUS = "/dev/nvidiactl"  # of a container only where it was given some


def main() -> int:
    told: Dict[str, Any] = {"missing": missing(json.loads(sys.argv[1])), "site": site.getsitepackages()}
    if sys.argv[2:] == ["gpus"]:
        told["gpus"] = why_not_on_gpus() if Path(GPUS).exists() else None
    print(json.dumps(told))
    return 0


def why_not_on_gpus() -> Optional[str]:
    """Nothing is put on a GPU: other runs may need all of it."""
    try:
        torch: Any = importlib.import_module("torch")
        if not torch.cuda.is_available():
            return f"torch {torch.__version__} finds no GPU that it can use: its CUDA is not this driver's"
        for number in range(torch.cuda.device_count()):
            capability = tuple(torch.cuda.get_device_capability(number))
            built_for = list(torch.cuda.get_arch_list())
            if not runs_on(capability, built_for):
                name, built = torch.cuda.get_device_name(number), ", ".join(built_for)
                return f"torch {torch.__version__} was built for {built}, and not for {name}"
    except Exception as error:  # of whatever was installed
        return f"torch cannot be asked: {type(error).__name__}: {error}"
    return None


def runs_on(capability: Tuple[int, ...], built_for: List[str]) -> bool:
    """Machine code runs on GPUs of its generation that are no older; code of the other kind is translated for any
    that is no older."""
    for name in built_for:
        kind, _, number = name.partition("_")
        found = re.fullmatch(r"(\d+)(\d)([af]?)", number)
        if found is None:
            continue
        built = int(found[1]), int(found[2])
        is_near = built == capability or (built < capability and found[3] != "a")
        if is_near and (kind == "compute" or (kind == "sm" and built[0] == capability[0])):
            return True
    return not built_for  # nothing is known


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
