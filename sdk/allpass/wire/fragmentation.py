"""What would fit on a team's own machines now."""

from __future__ import annotations

from pydantic import Field

from allpass.wire.base import Response

_FITTING = "how many would fit beside each other now"
_BY_GPUS = "free GPUs that none could have: too few are free together on their hosts"
_BY_CPUS = "free GPUs that none could have: too few processors are cut with them"


class RequestFit(Response):
    """Of requests of one shape, each on one host."""

    gpus: int
    cpus: int
    fitting: int = Field(description=_FITTING)
    blocked_by_gpus: int = Field(description=_BY_GPUS)
    blocked_by_cpus: int = Field(description=_BY_CPUS)


class GangFit(Response):
    """Of gangs, each of whole hosts within one switch."""

    gpus: int
    host_gpus: int
    host_cpus: int
    fitting: int = Field(description=_FITTING)
    blocked_by_gpus: int = Field(description=_BY_GPUS)
    blocked_by_cpus: int = Field(description=_BY_CPUS)
    blocked_by_switch: int = Field(description="free GPUs of whole hosts that none could have: too few under a switch")
    fitting_in_rack: int | None = Field(None, description="of those within one rack; null: nobody says any rack")
    blocked_by_rack: int | None = Field(None, description="as blocked_by_switch, in racks in place of switches")


class Fragmentation(Response):
    """GET /v1/fragmentation: of hosts of pools that take jobs now."""

    pool: str | None = Field(None, description="None: of all")
    hosts: int
    whole_hosts: int = Field(description="hosts of which all GPUs are free")
    gpus: int
    free_gpus: int
    switches: int = Field(
        description="by the label `switch` of hosts, or of their pool; of each pool, those without it count as one"
    )
    racks: int = Field(0, description="likewise by the label `rack`; 0: nobody says any")
    requests: list[RequestFit]
    gangs: list[GangFit]
