"""The torch that is pinned, the CUDA that it is built for and the machines that are looked for fit each other."""

from __future__ import annotations

import re
from pathlib import Path

from app.core import pinned
from app.core.images.reference import parse_image
from app.settings import Settings
from providers.vast.options import VastOptions
from providers.vast.plugin import VastSettings

ROOT = Path(__file__).parents[2]


def test_the_pinned_torch_is_the_one_whose_cuda_is_known() -> None:
    """A new torch may be built for another CUDA: then `app/core/pinned.py` is looked at, too."""
    for file in ("constraints.txt", "pyproject.toml"):
        (found,) = set(re.findall(r"^\W*torch==([0-9.]+)", (ROOT / file).read_text(), re.MULTILINE))
        assert found == pinned.TORCH, file


def test_machines_are_looked_for_whose_driver_runs_it() -> None:
    """By default; who names an image with another build names the CUDA of that."""
    assert VastSettings.model_fields["cuda"].default == VastOptions("key").cuda == pinned.CUDA
    required = {"database_url": "postgresql://a", "secret_key": "k" * 32, "objects_signing_key": "s" * 32}
    assert Settings(**required, vast_cuda=12.8).promised_cuda["vast"] == 12.8


def test_the_usual_image_has_that_torch_for_that_cuda() -> None:
    """A job of the built-in recipe finds its torch there, and installs none of several gigabytes."""
    assert Settings.model_fields["node_image"].default == pinned.IMAGE
    image = parse_image(pinned.IMAGE)
    assert (image.name, image.tag) == ("docker.io/pytorch/pytorch", "2.13.0-cuda13.0-cudnn9-runtime")
    assert not image.can_change
