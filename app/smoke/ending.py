"""The end of a rehearsal, whatever happened: its job is cancelled, its machines are gone, and that is shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from allpass.errors import AllpassError as ClientError
from allpass.wire.jobs import TERMINAL_STATUSES
from app.errors import ProviderError
from app.ports.provider import MachineStatus, Provider
from app.smoke.rehearsing import GONE, Rehearsal

ENDING_S = 600.0
_POLL_S = 2.0


def end_everything(rehearsal: Rehearsal, *, within_s: float = ENDING_S, poll_s: float = _POLL_S) -> list[str]:
    """Cancel the job and wait until the service has every machine's end confirmed. Returns those that have none."""
    until, said, quiet = time.monotonic() + within_s, False, 0
    while True:
        with suppress(ClientError):
            job = rehearsal.job()
            if job is not None and job.status not in TERMINAL_STATUSES:
                if not said:
                    rehearsal.say(f"cancel {job.id}")
                    said = True
                rehearsal.cancel()
            rehearsal.note_nodes()
            over = job is None or job.status in TERMINAL_STATUSES
            quiet = quiet + 1 if over and not _open_nodes(rehearsal) else 0
            if quiet == 2:  # what was decided before the cancellation may be rented just after the first look
                return []
        if time.monotonic() > until:
            return _open_nodes(rehearsal) or [f"the job with the label {rehearsal.label}"]
        time.sleep(poll_s)


def _open_nodes(rehearsal: Rehearsal) -> list[str]:
    return sorted(node.id for node in rehearsal.nodes.values() if node.state not in GONE)


async def list_left(providers: Mapping[str, Provider], rehearsal: Rehearsal, provider: str) -> list[str]:
    """What of the rehearsal's machines the company itself still lists; they are ended. Raises ProviderError when it
    cannot be asked."""
    asked = providers[provider]
    left = []
    for machine in await asked.list_owned():
        if machine.label in rehearsal.nodes and machine.status is not MachineStatus.ENDED:
            with suppress(ProviderError):
                await asked.terminate(machine.ref)
            left.append(f"{machine.label} ({machine.ref})")
    return left


async def prove(
    providers: Mapping[str, Provider], rehearsal: Rehearsal, provider: str, *, within_s: float = 120.0
) -> tuple[list[str], list[str]]:
    """Lines of proof, and what is left. Two listings without any of its machines are proof."""
    if provider not in providers:
        return ["the company was not listed from here: the keys are with the service, which confirmed each end"], []
    quiet, until, left = 0, time.monotonic() + within_s, list[str]()
    try:
        while time.monotonic() < until and quiet < 2:
            left = await list_left(providers, rehearsal, provider)
            quiet = 0 if left else quiet + 1
            await asyncio.sleep(0 if quiet >= 2 else _POLL_S)
    except ProviderError as error:
        return [f"{provider} could not be listed from here: {error.message}"], []
    if quiet >= 2:
        return [f"two listings of {provider} itself show none of the rehearsal's machines as alive"], []
    return [f"{provider} still lists machines of the rehearsal"], left


def in_words(rehearsal: Rehearsal) -> Iterator[str]:
    """What the service says of each machine."""
    for node in sorted(rehearsal.nodes.values(), key=lambda one: one.requested_at):
        yield f"{node.id}: {node.state}, ${node.cost / 1e6:.4f}"
