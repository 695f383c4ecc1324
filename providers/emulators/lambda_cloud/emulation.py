"""Lambda for `providers.emulators.serving`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.emulators.admin import Unfit, whole_number
from providers.emulators.estate import Estate
from providers.emulators.gpu_faults import break_gpus
from providers.emulators.lambda_cloud.api import LambdaApi
from providers.emulators.lambda_cloud.goods import LISTING_LAG_MS, goods
from providers.emulators.lambda_cloud.ways import KINDS, OPS, SWITCHES
from providers.emulators.meter import LAMBDA_RULE
from providers.emulators.rows import MachineState, Then
from providers.emulators.serving import Built, Emulation, Grounds
from providers.emulators.startup import LAMBDA
from providers.emulators.wire import HttpFront

DEFAULT_PORT, DEFAULT_ADMIN_PORT = 7723, 7733


def build(grounds: Grounds) -> Built:
    """The API, and on the admin port: `unhealthy`, `heal`, `gpus`, and a preemption that leaves the machine listed."""
    actions, gpus = _Actions(grounds.estate), break_gpus(grounds.estate)
    return Built(
        HttpFront(LambdaApi(grounds).app()),
        {"unhealthy": actions.unhealthy, "heal": actions.heal, "preempt": actions.preempt, "gpus": gpus},
    )


class _Actions:
    def __init__(self, estate: Estate) -> None:
        self._estate = estate

    async def unhealthy(self, ref: str, _: Mapping[str, Any]) -> None:
        self._check_running(ref)
        self._estate.update_facts(ref, unhealthy_after_ms=0)

    async def heal(self, ref: str, _: Mapping[str, Any]) -> None:
        self._check_running(ref)
        self._estate.update_facts(ref, unhealthy_after_ms=None)

    async def preempt(self, ref: str, body: Mapping[str, Any]) -> None:
        self._check_running(ref)
        await self._estate.preempt(ref, whole_number(body, "notice_ms", default=0), Then.STOP)

    def _check_running(self, ref: str) -> None:
        machine = self._estate.get(ref)
        if machine is None or machine.state is not MachineState.RUNNING:
            raise Unfit(f"{ref} is not running")


EMULATION = Emulation(
    name="lambda",
    default_port=DEFAULT_PORT,
    default_admin_port=DEFAULT_ADMIN_PORT,
    rule=LAMBDA_RULE,
    startup=LAMBDA,
    goods=goods(),
    ops=OPS,
    kinds=KINDS,
    switches=SWITCHES,
    listing_lag_ms=LISTING_LAG_MS,
    build=build,
)
