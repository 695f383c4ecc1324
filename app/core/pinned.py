"""The torch that is tested here, what its wheel asks of a machine, and the public image that has both.

They change together: a test holds them.
"""

from __future__ import annotations

TORCH = "2.13.0"
CUDA = 13.0
"""The Linux wheel of `TORCH` in the package registry is built for this CUDA: older drivers cannot run it."""

DRIVER = 580
"""The first driver of `CUDA`."""

IMAGE = f"pytorch/pytorch:{TORCH}-cuda{CUDA}-cudnn9-runtime"
"""What machines are rented with unless something else is said: that torch for that CUDA, with Python and pip."""
