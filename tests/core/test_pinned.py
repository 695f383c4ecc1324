"""The torch that is pinned, the CUDA that it is built for and the machines that are looked for fit each other."""

from __future__ import annotations

import re
from pathlib import Path

from app.core import pinned
from app.settings import Settings
from providers.vast.options import VastOptions

ROOT = Path(__file__).parents[2]


def test_the_pinned_torch_is_the_one_whose_cuda_is_known() -> None:
    """A new torch may be built for another CUDA: then `app/core/pinned.py` is looked at, too."""
    for file in ("constraints.txt", "pyproject.toml"):
        (found,) = set(re.findall(r"^\W*torch==([0-9.]+)", (ROOT / file).read_text(), re.MULTILINE))
        assert found == pinned.TORCH, file


def test_machines_are_looked_for_whose_driver_runs_it() -> None:
    """By default; who names an image with another build names the CUDA of that."""
    assert Settings.model_fields["vast_cuda"].default == VastOptions("key").cuda == pinned.CUDA
    settings = Settings.model_construct(vast_cuda=12.8)
    assert settings.promised_cuda == {"vast": 12.8}
