"""Download a model of the Hugging Face hub before a job asks for it: `hub_ahead.py MODEL MOST_BYTES`.

A program of its own, run by the environment's Python in a home of its own. Without a token: what the public may not
have is a secret of jobs. What it takes is what the built-in recipe will load: weights, settings and tokenizer.
"""

from __future__ import annotations

import importlib
import re
import sys

TYPE_CHECKING = False  # as in `typing`, which is not needed otherwise
if TYPE_CHECKING:
    from typing import Dict, List, Optional

_BESIDE = re.compile(r"[^/]+\.(json|txt|model|jinja|tiktoken)")
_WEIGHTS = (  # the first of these that there is
    re.compile(r"model(-\d+-of-\d+)?\.safetensors"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin"),
)


def main() -> None:
    model, most_bytes = sys.argv[1], int(sys.argv[2])
    hub = importlib.import_module("huggingface_hub")  # of the environment
    info = hub.HfApi(token=False).model_info(model, files_metadata=True)
    sizes = {one.rfilename: one.size for one in info.siblings or ()}
    files = wanted(sizes)
    total_bytes = sum(sizes[name] or 0 for name in files)
    if total_bytes > most_bytes:
        sys.exit(f"{model} has {total_bytes} bytes; there is room for {most_bytes}")
    for name in files:
        hub.hf_hub_download(model, name, token=False)


def wanted(sizes: Dict[str, Optional[int]]) -> List[str]:
    """Of the files of a model, those that are loaded: the smallest first."""
    found = [name for name in sizes if _BESIDE.fullmatch(name)]
    for pattern in _WEIGHTS:
        weights = [name for name in sizes if pattern.fullmatch(name)]
        if weights:
            found += weights
            break
    return sorted(found, key=lambda name: (sizes[name] or 0, name))


if __name__ == "__main__":
    main()
