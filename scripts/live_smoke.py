"""Rents one real machine for a moment, to see that an adapter and an account work together. COSTS MONEY.

    ALLPASS_VAST_API_KEY=... .venv/bin/python scripts/live_smoke.py vast --most-dollars 0.10           # only looks
    ALLPASS_VAST_API_KEY=... .venv/bin/python scripts/live_smoke.py vast --most-dollars 0.10 --rent    # rents

Takes the cheapest offer whose whole time here, start-up deadline included, stays below the ceiling; creates it under a
label of its own, waits until it runs, reads its log, ends it, and looks until the listing confirms the end. The end is
asked for whatever happens in between, also on Ctrl-C; if it cannot be confirmed the last line says what to end by hand,
and the exit code is 3. Never part of the tests. With ALLPASS_..._URL settings it talks to an emulator.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from dataclasses import dataclass

from pydantic import SecretStr

from app.core.model.ids import make_id
from app.core.model.money import Money
from app.core.model.offer import Offer
from app.errors import AllpassError, ProviderError
from app.ports.provider import Machine, MachineRequest, MachineStatus, Provider
from app.settings import Settings
from app.system import SystemClock
from app.wiring import build_providers

_LOOK_S = 3.0
_ENDING_S = 300.0
_LEFT = 3


@dataclass(frozen=True, slots=True)
class Limits:
    most_micros: int
    most_ms: int  # from create to terminate


def main() -> int:
    """0: it worked, or there was only to look. 1: it did not, and nothing is left. 3: something may be left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("provider", choices=["modal", "vast", "lambda", "local"])
    parser.add_argument("--most-dollars", type=float, required=True, help="ceiling of what the machine may cost")
    parser.add_argument("--most-minutes", type=float, default=20.0, help="longest time until it is ended")
    parser.add_argument("--rent", action="store_true", help="really rent; without it nothing is created")
    given = parser.parse_args()
    limits = Limits(round(given.most_dollars * 1e6), round(given.most_minutes * 60_000))
    # The rest of the settings is of no concern here, but has to be there.
    settings = Settings(
        database_url=SecretStr("unused"),
        secret_key=SecretStr("unused" * 6),
        objects_signing_key=SecretStr("unused" * 6),
    )
    provider = build_providers(settings, SystemClock(), None).get(given.provider)
    if provider is None:
        return _say(2, f"no credentials for {given.provider} are set; see .env.example")
    try:
        return asyncio.run(_smoke(provider, limits, rent=given.rent))
    except AllpassError as error:
        return _say(1, f"{error.error_code}: {error.message}")


async def _smoke(provider: Provider, limits: Limits, *, rent: bool) -> int:
    try:
        offers = sorted(await provider.offers(), key=lambda offer: offer.price_per_hour)
        affordable = [offer for offer in offers if _most_cost(offer, limits) <= limits.most_micros]
        print(f"{len(offers)} offers, {len(affordable)} of them within ${limits.most_micros / 1e6:.2f}")
        if not affordable:
            return _say(1, "nothing can be rented for that; raise --most-dollars or lower --most-minutes")
        offer = affordable[0]
        print(f"cheapest: {offer.key} {offer.gpu_count}x {offer.gpu_type} ${offer.price_per_hour.micros / 1e6}/h")
        return await _rent(provider, offer, limits) if rent else _say(0, "only looked; --rent rents it")
    finally:
        await provider.close()


def _most_cost(offer: Offer, limits: Limits) -> int:
    return -(-offer.price_per_hour.micros * (limits.most_ms + round(_ENDING_S * 1000)) // 3_600_000)


async def _rent(provider: Provider, offer: Offer, limits: Limits) -> int:
    label = make_id("node", time.time_ns() // 1_000_000, secrets.randbits(50))
    started = time.monotonic()
    # Nobody listens there: the machine's agent gives up by itself, should everything else fail.
    bootstrap = (
        ("ALLPASS_URL", "http://127.0.0.1:9"),
        ("ALLPASS_AGENT_SHA256", "0" * 64),
        ("ALLPASS_JOIN_TOKEN", "smoke"),
        ("ALLPASS_BOOTSTRAP_LIMIT_S", str(limits.most_ms // 1000)),
    )
    request = MachineRequest(label, offer, offer.price_per_hour, Settings.model_fields["node_image"].default, bootstrap)
    outcome = 1
    try:
        machine = await provider.create(request)
        print(f"{time.monotonic() - started:6.1f} s  created {machine.ref}")
        outcome = 0 if await _runs(provider, machine, started, limits) else 1
    except ProviderError as error:
        print(f"{error.error_code}: {error.message}")
    finally:
        left = await asyncio.shield(_end_all(provider, label, started))
    if left:
        return _say(_LEFT, f"END BY HAND at the provider: {', '.join(left)} (label {label})")
    return _say(outcome, "nothing is left")


async def _runs(provider: Provider, machine: Machine, started: float, limits: Limits) -> bool:
    while time.monotonic() - started < limits.most_ms / 1000:
        seen = await provider.get(machine.ref)
        status = MachineStatus.ENDED if seen is None else seen.status
        if status is not MachineStatus.BOOTING:
            print(f"{time.monotonic() - started:6.1f} s  {status}  {seen.detail if seen else ''}")
            print(await provider.logs(machine.ref, 20))
            return status is MachineStatus.RUNNING
        await asyncio.sleep(_LOOK_S)
    print("it did not come up in time")
    return False


async def _end_all(provider: Provider, label: str, started: float) -> list[str]:
    """End whatever carries the label, however the create call went; what cannot be confirmed is named."""
    alive = [label]
    until = time.monotonic() + _ENDING_S
    quiet = 0
    grace_s = max(traits.create_grace_ms for traits in provider.traits()) / 1000
    while time.monotonic() < until:
        try:
            found = await provider.find(label)
            alive = [one.ref for one in found if one.status is not MachineStatus.ENDED]
            for ref in alive:
                await provider.terminate(ref)
            quiet = 0 if alive else quiet + 1
            if quiet >= 2 and time.monotonic() - started > grace_s:
                spent = sum((one.billed or Money(0)).micros for one in found)
                print(
                    f"{time.monotonic() - started:6.1f} s  ended; billed as far as the provider tells: ${spent / 1e6}"
                )
                return []
        except ProviderError as error:
            print(f"not confirmed yet: {error.message}")
        await asyncio.sleep(_LOOK_S)
    return alive or [label]


def _say(code: int, message: str) -> int:
    print(message)
    return code


if __name__ == "__main__":
    sys.exit(main())
