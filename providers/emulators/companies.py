"""The companies that are played, by name. Loads nothing: the command line starts with it."""

from __future__ import annotations

from enum import StrEnum


class Company(StrEnum):
    MODAL = "modal"
    VAST = "vast"
    LAMBDA = "lambda"
    RUNPOD = "runpod"
