"""The torch that is tested here, and what its wheel asks of a machine: the two change together, a test holds them."""

from __future__ import annotations

TORCH = "2.13.0"
CUDA = 13.0
"""The Linux wheel of `TORCH` in the package registry is built for this CUDA: older drivers cannot run it."""

DRIVER = 580
"""The first driver of `CUDA`."""
