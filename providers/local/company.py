"""The company at work: rents machines out, boots them, watches them, ends them.

All state changes happen on the event loop's thread without an await between looking and writing, so no two requests can
disagree about a machine. Only the killing and wiping runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from providers.local.market import ListedOffer, LocalCatalogue
from providers.local.store import MachineRow, MachineState, NewMachine, OfferTaken, Store
from workers.agent.blocks import Block, NoneFree
from workers.machines.keeping import MachineEnd
from workers.machines.launch import AgentSetup, KeeperProcess, MachineFiles, launch
from workers.machines.leftovers import sweep_leftovers
from workers.machines.processes import ProcessIdentity, is_alive
from workers.machines.users import claim

_WATCH_S = 0.1
_WATCH_AFTER_FAILURE_S = 2.0
_ALIVE = "alive_ms"
_ALIVE_EVERY_MS = 1_000
LISTED_AFTER_END_MS = 15 * 60_000
_LOG_TAIL_BYTES = 256 * 1024
_log = logging.getLogger(__name__)

EMULATED_GPU_MEMORY = "NVIDIA_EMULATED_MEMORY_BYTES"
"""How a machine's code learns what each of its emulated GPUs would have."""


@dataclass(frozen=True, slots=True)
class CompanyOptions:
    """`die_with_cloud`: no machine outlives this process, however that ends."""

    data_dir: Path
    agent: AgentSetup
    die_with_cloud: bool = True


@dataclass(frozen=True, slots=True)
class Rental:
    """A checked create call."""

    label: str | None
    offer_id: str
    max_price_micros_per_hour: int
    image: str
    environment: Mapping[str, str] = field(default_factory=dict)
    lifetime_ms: int | None = None


class NotRentedOut(Exception):
    """The company does not rent this out; `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LocalCompany:
    """One account's machines. `start` before use, `stop` at the end (stopping twice is harmless)."""

    def __init__(
        self, options: CompanyOptions, store: Store, market: LocalCatalogue, now_ms: Callable[[], int]
    ) -> None:
        self.market = market
        self.store = store
        self.now_ms = now_ms
        self._options = options
        self._keepers: dict[str, KeeperProcess] = {}
        self._blocks: dict[str, Block] = {}  # of machines that have not booted
        self._boots: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up what an earlier cloud process left, then watch."""
        data_dir = self._options.data_dir
        await asyncio.to_thread(
            sweep_leftovers,
            data_dir,
            live={machine.machine_id for machine in self.store.live()},
            ended=self.store.ended_ids(),
            files_of=lambda machine_id: MachineFiles(data_dir, machine_id),
        )
        last_alive_ms = self.store.fact(_ALIVE) or 0
        takings = (self._take_up(machine, last_alive_ms) for machine in self.store.live())
        for result in await asyncio.gather(*takings, return_exceptions=True):
            if isinstance(result, BaseException):
                _log.error("a machine could not be taken up: %s", result)
        self._watch = asyncio.create_task(self._watch_machines())

    async def stop(self) -> None:
        """End the machines if they are to go with us; forget them politely otherwise."""
        if self._watch is None:
            return
        tasks = [self._watch, *self._boots.values()]
        self._watch = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._options.die_with_cloud:
            endings = (self._terminate(machine, "the cloud was stopped", outage=True) for machine in self.store.live())
            for result in await asyncio.gather(*endings, return_exceptions=True):
                if isinstance(result, BaseException):
                    _log.error("a machine may run on: %s", result)
        await asyncio.gather(*self._ends.values(), return_exceptions=True)
        self.store.set_fact(_ALIVE, self.now_ms())
        for keeper in self._keepers.values():
            keeper.forget()

    def offers(self) -> list[ListedOffer]:
        """What can be rented this moment."""
        taken = self.store.taken_offers()
        return [offer for offer in self.market.offers.values() if offer.offer_id not in taken]

    def create(self, rental: Rental, *, never_ready: bool = False, extra_boot_ms: int = 0) -> MachineRow:
        """Rent a machine; it boots on its own. Raises Refused (offer_gone, price_moved): then nothing was rented."""
        offer = self.market.offers.get(rental.offer_id)
        if offer is None:
            raise NotRentedOut("offer_gone", f"offer {rental.offer_id} is not listed")
        if offer.price_micros_per_hour > rental.max_price_micros_per_hour:
            raise NotRentedOut(
                "price_moved",
                f"offer {rental.offer_id} costs {offer.price_micros_per_hour} micro-dollars an hour,"
                f" more than the agreed {rental.max_price_micros_per_hour}",
            )
        now_ms, number = self.now_ms(), self.store.next_number()
        boot_ms = self.market.startup_ms(offer.rental_class, number) + extra_boot_ms
        new = NewMachine(
            machine_id=f"m-{number:06d}-{secrets.token_hex(4)}",
            label=rental.label,
            rental_class=offer.rental_class,
            offer_id=offer.offer_id,
            single=offer.single,
            gpu_type=offer.gpu_type,
            gpu_count=offer.gpu_count,
            price_micros_per_hour=offer.price_micros_per_hour,
            image=rental.image,
            created_ms=now_ms,
            boot_at_ms=None if never_ready else now_ms + boot_ms,
            expires_ms=None if rental.lifetime_ms is None else now_ms + rental.lifetime_ms,
        )
        files = MachineFiles(self._options.data_dir, new.machine_id)
        block = _claim_users()
        emulated = {EMULATED_GPU_MEMORY: str(offer.gpu_memory_bytes)}
        environment = {**rental.environment, **emulated}
        try:
            files.prepare(environment, self._options.agent, die_with_cloud=self._options.die_with_cloud)
            machine = self.store.add(new)
        except BaseException as error:  # a full disk, mostly: nothing was rented, and no token may stay
            if block is not None:
                block.close()
            files.remove()
            if isinstance(error, OfferTaken):
                raise NotRentedOut("offer_gone", f"offer {rental.offer_id} has just been taken") from error
            raise
        if block is not None:
            self._blocks[machine.machine_id] = block
        self._boot_later(machine)
        return machine

    async def terminate(self, machine_id: str) -> MachineRow | None:
        """End it, abruptly, with all that runs on it. None: no such machine. Ending twice is harmless; the disk of one
        that has ended may be wiped a moment later."""
        machine = self.store.get(machine_id)
        if machine is not None and machine.state is not MachineState.ENDED:
            await self._terminate(machine, "terminated on request")
        return self.store.get(machine_id)

    def log_tail(self, machine_id: str, lines: int) -> str:
        """The last lines that the machine wrote, as far as they fit into the last 256 KiB."""
        return MachineFiles(self._options.data_dir, machine_id).log_tail(lines, _LOG_TAIL_BYTES)

    # -- booting

    async def _take_up(self, machine: MachineRow, last_alive_ms: int) -> None:
        """A machine of an earlier cloud process: boot it, leave it running, or note its end."""
        files = MachineFiles(self._options.data_dir, machine.machine_id)
        if machine.state is MachineState.BOOTING and files.order_file.exists():
            await self._end_tree(machine)  # a keeper may have been started without having read its order
            files.set_die_with_cloud(self._options.die_with_cloud)
            self._boot_later(machine)
        elif not _keeper_lives(machine):
            await self._note_end(machine, last_alive_ms, unwatched=True)

    def _boot_later(self, machine: MachineRow) -> None:
        if machine.boot_at_ms is not None:
            self._boots[machine.machine_id] = asyncio.create_task(self._boot(machine.machine_id, machine.boot_at_ms))

    async def _boot(self, machine_id: str, boot_at_ms: int) -> None:
        await asyncio.sleep(max(0, boot_at_ms - self.now_ms()) / 1000)
        self._boots.pop(machine_id, None)
        machine = self.store.get(machine_id)
        if machine is not None and machine.state is MachineState.BOOTING and machine_id not in self._ends:
            try:
                self._launch(machine)
            except (OSError, sqlite3.Error, subprocess.SubprocessError) as error:
                _log.exception("machine %s could not be started", machine_id)
                await self._terminate(machine, f"could not be started: {error}", outage=True)

    def _launch(self, machine: MachineRow) -> None:
        """Raises whatever keeps it from being started, or from being found again once it is."""
        files = MachineFiles(self._options.data_dir, machine.machine_id)
        keeper = launch(files, self._blocks.pop(machine.machine_id, None))
        self._keepers[machine.machine_id] = keeper
        self.store.set_running(machine.machine_id, self.now_ms(), keeper.identity)

    # -- ending

    async def _terminate(self, machine: MachineRow, why: str, *, outage: bool = False) -> None:
        """All who want the same machine ended wait for the same ending."""
        task = self._ends.get(machine.machine_id)
        if task is None or task.done():
            ending = self._end_now(machine.machine_id, why, outage=outage)
            task = self._background(self._ends, machine.machine_id, ending)
        await asyncio.shield(task)

    async def _end_now(self, machine_id: str, why: str, *, outage: bool = False) -> None:
        machine = self.store.get(machine_id)
        if machine is None or machine.state is MachineState.ENDED:
            return
        keeper = self._keepers.get(machine_id)
        await self._end_tree(machine, None if keeper is None else keeper.identity)
        try:
            self.store.set_ended(machine_id, self.now_ms(), why, outage=outage)
        finally:
            await self._clear_up(machine_id)

    async def _note_end(self, machine: MachineRow, seen_ms: int, *, unwatched: bool = False) -> None:
        """The machine ended by itself. Without its keeper's word, it ended when it was last seen.

        `unwatched`: no cloud was up then. A keeper kills what runs when its cloud is gone, if it is to, and where the
        host itself went down there is nobody's word.
        """
        end = MachineFiles(self._options.data_dir, machine.machine_id).end()
        if end is None:
            await self._end_tree(machine)
        with_us = end is None or (self._options.die_with_cloud and end.exit_code == -signal.SIGKILL)
        ended_ms = end.ended_ms if end else seen_ms
        try:
            self.store.set_ended(machine.machine_id, ended_ms, _describe(end), outage=unwatched and with_us)
        finally:
            await self._clear_up(machine.machine_id)

    async def _end_tree(self, machine: MachineRow, started: ProcessIdentity | None = None) -> None:
        """`started`: its keeper, which may not be written down yet."""
        block = self._blocks.pop(machine.machine_id, None)
        if block is not None:
            block.close()
        files = MachineFiles(self._options.data_dir, machine.machine_id)
        if not await asyncio.to_thread(files.kill, machine.keeper or started):
            raise RuntimeError(f"machine {machine.machine_id} has processes that survive SIGKILL")

    async def _clear_up(self, machine_id: str) -> None:
        """A rented disk is gone with its machine; only the log stays."""
        keeper = self._keepers.pop(machine_id, None)
        try:
            if keeper is not None:
                await asyncio.to_thread(keeper.collect)
        finally:
            files = MachineFiles(self._options.data_dir, machine_id)
            await asyncio.to_thread(files.wipe)

    # -- watching

    async def _watch_machines(self) -> None:
        noted_ms = 0
        while True:
            now_ms, pause_s = self.now_ms(), _WATCH_S
            try:
                for machine in self.store.live():
                    self._look_at(machine, now_ms)
                if now_ms - noted_ms >= _ALIVE_EVERY_MS:
                    noted_ms = now_ms
                    self.store.set_fact(_ALIVE, now_ms)
            except sqlite3.Error as error:  # a full disk, mostly: machines are watched again when it is over
                _log.error("the machines could not be looked after: %s", error)
                pause_s = _WATCH_AFTER_FAILURE_S
            await asyncio.sleep(pause_s)

    def _look_at(self, machine: MachineRow, now_ms: int) -> None:
        if machine.machine_id in self._ends:
            return
        if machine.expires_ms is not None and now_ms >= machine.expires_ms:
            ending = self._end_now(machine.machine_id, "its lifetime is over")
        elif machine.state is MachineState.RUNNING and not _keeper_lives(machine):
            ending = self._note_end(machine, now_ms)
        elif machine.state is MachineState.BOOTING and machine.boot_at_ms and machine.machine_id not in self._boots:
            ending = self._end_now(machine.machine_id, "could not be started", outage=True)
        else:
            return
        self._background(self._ends, machine.machine_id, ending)

    def _background(
        self, tasks: dict[str, asyncio.Task[None]], machine_id: str, work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        """Run `work` as the one task of this machine, forgotten when done. A failure is logged."""
        task = tasks[machine_id] = asyncio.create_task(work)

        def done(finished: asyncio.Task[None]) -> None:
            if finished.cancelled() or finished.exception() is None:
                _forget(tasks, machine_id, finished)
                return
            _log.error("machine %s: %s", machine_id, finished.exception())
            # who watches tries it again, after a pause
            finished.get_loop().call_later(_WATCH_AFTER_FAILURE_S, _forget, tasks, machine_id, finished)

        task.add_done_callback(done)
        return task


def _forget(tasks: dict[str, asyncio.Task[None]], machine_id: str, task: asyncio.Task[None]) -> None:
    if tasks.get(machine_id) is task:
        del tasks[machine_id]


def _claim_users() -> Block | None:
    """Raises Refused: a machine whose users were another's would be no machine of its own."""
    try:
        return claim()
    except NoneFree as error:
        raise NotRentedOut("offer_gone", f"this host has no room for another machine: {error}") from error


def _keeper_lives(machine: MachineRow) -> bool:
    return machine.keeper is not None and is_alive(machine.keeper)


def _describe(end: MachineEnd | None) -> str:
    if end is None:
        return "its processes disappeared"
    if end.exit_code < 0:
        return f"its agent was killed by signal {-end.exit_code}"
    return f"its agent exited with code {end.exit_code}"
