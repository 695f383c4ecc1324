"""RunPod for `providers.emulators.serving`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.emulators.admin import Unfit
from providers.emulators.estate import Estate
from providers.emulators.meter import RUNPOD_RULE
from providers.emulators.rows import Cause, MachineState
from providers.emulators.runpod.api import RunpodApi
from providers.emulators.runpod.goods import LISTING_LAG_MS, goods
from providers.emulators.runpod.pods import LOST
from providers.emulators.runpod.ways import KINDS, OPS, SWITCHES
from providers.emulators.serving import Built, Emulation, Grounds
from providers.emulators.startup import RUNPOD
from providers.emulators.wire import HttpFront

DEFAULT_PORT, DEFAULT_ADMIN_PORT = 7724, 7734


def build(grounds: Grounds) -> Built:
    """The API, and on the admin port: `exit` (the host stops the pod), `vanish` (it is in no listing, and goes on
    costing), `gpus` (something happens to its GPUs)."""
    actions = _Actions(grounds.estate)
    return Built(
        HttpFront(RunpodApi(grounds).app()),
        {"exit": actions.exit, "vanish": actions.vanish, "gpus": actions.gpus},
    )


class _Actions:
    def __init__(self, estate: Estate) -> None:
        self._estate = estate

    async def exit(self, ref: str, _: Mapping[str, Any]) -> None:
        machine = self._estate.get(ref)
        if machine is None or machine.state is not MachineState.RUNNING:
            raise Unfit(f"{ref} is not running")
        await self._estate.stop(ref, Cause.COMPANY, "the host was taken down")

    async def vanish(self, ref: str, _: Mapping[str, Any]) -> None:
        self._estate.update_facts(ref, shown=LOST)

    async def gpus(self, ref: str, body: Mapping[str, Any]) -> None:
        try:
            self._estate.break_gpus(ref, str(body.get("wrong", "")))
        except ValueError as error:
            raise Unfit(str(error)) from error


EMULATION = Emulation(
    name="runpod",
    default_port=DEFAULT_PORT,
    default_admin_port=DEFAULT_ADMIN_PORT,
    rule=RUNPOD_RULE,
    startup=RUNPOD,
    goods=goods(),
    ops=OPS,
    kinds=KINDS,
    switches=SWITCHES,
    listing_lag_ms=LISTING_LAG_MS,
    build=build,
)
