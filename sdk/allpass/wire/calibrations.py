"""How far memory predictions were off for runs of one kind."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from allpass.wire.base import Flag, Request, Response


class Calibration(Response):
    """What runs of one kind measured, against what was predicted for them.

    `ratio` is of allocated bytes. A few runs count little: estimates are corrected by `weight` of it, in the logarithm.
    """

    id: str
    family: str = Field(description="of models: the model_type of their config.json")
    method: str
    kernel: str = Field(description="attention and loss")
    gpu_type: str
    versions: str = Field(description="of the libraries that were measured")
    runs: int
    ratio: float = Field(description="measured over predicted, 1: the model was right")
    fragmentation: float = Field(description="reserved over allocated, less one")
    overhead_bytes: int = Field(description="of the process over reserved")
    weight: float = Field(description="how much it counts against the model, from 0 to 1")
    lowers: bool = Field(
        default=True, description="whether enough runs were measured for it to let a job on less memory than the model"
    )
    enabled: bool = Field(default=True, description="one that is switched off goes on learning and corrects nothing")
    updated_at: datetime


class CalibrationUpdate(Request):
    """Switch a calibration on or off."""

    enabled: Flag = Field(description="false: predictions of its kind go by the model alone")
