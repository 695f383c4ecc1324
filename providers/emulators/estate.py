"""The machines of one emulated account: real processes that boot, run, are stopped, started again and ended.

All state changes happen on the event loop's thread without an await between looking and writing, so no two requests can
disagree about a machine. Only the killing and wiping runs in threads. What was decided about a machine is written down
before its processes are touched: an emulator that is killed in between finishes the work when it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from providers.emulators.books import Books
from providers.emulators.nvidia_smi import GPUS, WRONGS, EmulatedGpus
from providers.emulators.rows import Cause, MachineEnding, MachineRow, MachineState, NewMachine, Then
from workers.machines.keeping import MachineEnd
from workers.machines.launch import AgentSetup, KeeperProcess, MachineFiles, launch
from workers.machines.leftovers import sweep_leftovers
from workers.machines.processes import ProcessIdentity, is_alive, process_table, send_signal

_WATCH_S = 0.1
_WATCH_AFTER_FAILURE_S = 2.0
_ALIVE = "alive_ms"
_MARK = "mark"
ACCEPTED = "end_accepted_ms"  # in a machine's facts: from when on its end counts
_ALIVE_EVERY_MS = 1_000
_LOG_TAIL_BYTES = 256 * 1024
_PROGRAM_APPEARS_S = 20.0  # on a busy host
_LOOK_S = 0.02
_log = logging.getLogger(__name__)

Listener = Callable[[MachineRow], None]


@dataclass(frozen=True, slots=True)
class EstateOptions:
    """`die_with_us`: no machine's process outlives the emulator, however that ends. `surroundings`: what a machine that
    starts has in its environment, beside what its customer gave."""

    data_dir: Path
    die_with_us: bool = True
    surroundings: Callable[[], Mapping[str, str]] = dict


class Estate:
    """`open` before use, `close` at the end (closing twice is harmless).

    Machines are named by `ref`, which the emulator chooses. Methods that take a ref raise LookupError for one that
    never was. Rows are values: ask again to see what has changed.
    """

    def __init__(self, options: EstateOptions, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self._options = options
        self._books = Books(options.data_dir / "emulator.sqlite")
        self._mark = str(self._books.recall(_MARK, "")) or secrets.token_hex(6)
        self._books.remember(_MARK, self._mark)
        self._agent = AgentSetup([], options.data_dir / "cache")
        self._agent.cache_dir.mkdir(exist_ok=True)
        self._keepers: dict[str, KeeperProcess] = {}
        self._boots: dict[str, asyncio.Task[None]] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._listeners: list[Listener] = []
        self._pulse = asyncio.Event()
        self._taken_up: set[str] = set()

    async def open(self) -> None:
        """Take up what an earlier process left, then watch."""
        live = {machine.ref for machine in self._books.live()}
        ended = {machine.ref for machine in self._books.all()} - live
        await asyncio.to_thread(sweep_leftovers, self._options.data_dir, live=live, ended=ended, files_of=self._files)
        last_alive_ms = self._books.recall(_ALIVE, 0)
        for machine in self._books.live():
            self._taken_up.add(machine.ref)
            self._take_up(machine, last_alive_ms)
        self._watch = asyncio.create_task(self._watch_machines())

    async def close(self) -> None:
        """Kill what runs if it is to go with us; leave it running otherwise. Machines stay in the books either way."""
        if self._watch is None:
            return
        tasks = [self._watch, *self._boots.values()]
        self._watch = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._endings.values(), return_exceptions=True)
        self._books.remember(_ALIVE, self.now_ms())
        if self._options.die_with_us:
            alive = [machine for machine in self._books.live() if machine.keeper is not None]
            for result in await asyncio.gather(*(self._kill(machine) for machine in alive), return_exceptions=True):
                if isinstance(result, BaseException):
                    _log.error("a machine may run on: %s", result)
        for keeper in self._keepers.values():
            keeper.forget()
        self._books.close()

    # -- looking

    def get(self, ref: str) -> MachineRow | None:
        """The machine, also long after its end. None: there never was one."""
        return self._books.get(ref)

    def all(self) -> list[MachineRow]:
        """Every machine there ever was, oldest first."""
        return self._books.all()

    def live(self) -> list[MachineRow]:
        """All that have not ended, oldest first."""
        return self._books.live()

    def live_or_ended_since(self, since_ms: int) -> list[MachineRow]:
        """All that have not ended, and those that ended at that moment or later, oldest first."""
        return self._books.live_or_ended_since(since_ms)

    def with_label(self, label: str) -> list[MachineRow]:
        """All that were ever rented under this label, oldest first."""
        return self._books.with_label(label)

    def next_number(self) -> int:
        """The number (from 1) of the machine that is added next; never used twice. For refs and seeded draws."""
        return self._books.next_number()

    def log_tail(self, ref: str, lines: int) -> str:
        """The last lines that the machine wrote (standard output and error together), from its last 256 KiB."""
        return self._files(ref).log_tail(lines, _LOG_TAIL_BYTES)

    def log_bytes(self, ref: str, offset: int, most_bytes: int = _LOG_TAIL_BYTES) -> bytes:
        """What the machine wrote from `offset` on; empty when there is nothing new."""
        log_file = self._files(ref).log_file
        if not log_file.exists():
            return b""
        with log_file.open("rb") as log:
            log.seek(offset)
            return log.read(most_bytes)

    async def until(
        self, ref: str, condition: Callable[[MachineRow], bool], timeout_s: float | None
    ) -> MachineRow | None:
        """Wait until the machine fulfils `condition`; None when `timeout_s` is over (None: no limit)."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(row := self._books.required(ref)):
                    await self._pulse.wait()
        except TimeoutError:
            return None
        return row

    def listen(self, listener: Listener) -> None:
        """Have `listener` called with the new row after every change of a state, on the event loop's thread."""
        self._listeners.append(listener)

    # -- what the emulator keeps here

    def remember(self, name: str, value: Any) -> None:
        """Keep a JSON value beside the machines, under a name of the emulator's choice (counters, keys, markets)."""
        self._books.remember(f"emulator/{name}", value)

    def recall(self, name: str, default: Any = None) -> Any:
        """What was remembered, also by an earlier process."""
        return self._books.recall(f"emulator/{name}", default)

    def update_facts(self, ref: str, **facts: Any) -> MachineRow:
        """Merge into the machine's facts."""
        return self._books.change(ref, facts=self._books.required(ref).facts | facts)

    def set_label(self, ref: str, label: str | None) -> MachineRow:
        """File it under another label."""
        return self._books.change(ref, label=label)

    def set_price(self, ref: str, price_micros_per_hour: int) -> MachineRow:
        """From now on it costs this much; nothing changes for a machine that has ended."""
        row = self._books.required(ref)
        if not row.is_live:
            return row
        return self._books.enter(ref, row.state, self.now_ms(), price_micros_per_hour=price_micros_per_hour)

    def set_deadline(self, ref: str, deadline_ms: int | None, then: Then, cause: Cause = Cause.DEADLINE) -> MachineRow:
        """Have the machine ended or stopped at this moment; None: no moment (a lifetime still counts)."""
        return self._books.change(ref, deadline_ms=deadline_ms, at_deadline=then, deadline_cause=cause)

    # -- a machine's life

    def add(self, new: NewMachine) -> MachineRow:
        """Rent a machine; it boots on its own. Raises ValueError for a ref that is taken or a text with a zero byte."""
        row = self._books.add(new, self.now_ms())
        self._boot_later(row)
        return self._tell(row)

    def boot_now(self, ref: str) -> MachineRow:
        """Bring up a booting machine now, whatever its time is (also one that would never come up)."""
        row = self._books.required(ref)
        if row.state is MachineState.BOOTING and row.ending is None:
            self._cancel_boot(ref)
            row = self._books.change(ref, boot_at_ms=self.now_ms())
            self._boot_later(row)
        return row

    async def stop(self, ref: str, cause: Cause = Cause.REQUEST, detail: str = "stopped on request") -> MachineRow:
        """Kill all that runs on it; it still exists, with its disk. Nothing happens to one that is stopped or ended."""
        return await self._bring(ref, MachineState.STOPPED, cause, detail)

    def start_again(self, ref: str, boot_ms: int | None = 0) -> MachineRow:
        """Boot a stopped machine: the same program on the same disk. Nothing happens to one in another state."""
        row = self._books.required(ref)
        if row.state is not MachineState.STOPPED or row.ending is not None:
            return row
        now_ms = self.now_ms()
        boot_at_ms = None if boot_ms is None else now_ms + boot_ms
        row = self._books.enter(
            ref, MachineState.BOOTING, now_ms, boot_at_ms=boot_at_ms, exit_code=None, cause=None, detail=""
        )
        self._boot_later(row)
        return self._tell(row)

    async def end(self, ref: str, cause: Cause = Cause.REQUEST, detail: str = "ended on request") -> MachineRow:
        """End it, abruptly, with all that runs on it, and wait until it is gone. Ending twice keeps the first end."""
        return await self._bring(ref, MachineState.ENDED, cause, detail)

    def end_soon(
        self, ref: str, cause: Cause = Cause.REQUEST, detail: str = "ended on request", *, is_accepted: bool = False
    ) -> MachineRow:
        """As `end`, without waiting: the row has `ending` until it is gone. `is_accepted`: for its customer it is over
        now, and costs nothing from now on, however long it takes to kill what runs there."""
        row = self._books.required(ref)
        if is_accepted and row.is_live and ACCEPTED not in row.facts:
            self.update_facts(ref, **{ACCEPTED: self.now_ms()})
        self._decide(ref, MachineState.ENDED, cause, detail)
        return self._books.required(ref)

    async def kill_inside(self, ref: str) -> bool:
        """SIGKILL its program, as a crash would: what follows is up to the machine's `when_it_exits`.

        False: nothing runs there (waits some seconds for a machine that has only just come up).
        """
        return await self.signal_inside(ref, signal.SIGKILL)

    async def signal_inside(self, ref: str, signal_number: int) -> bool:
        """Send a signal to its program; False as for `kill_inside`."""
        try:
            async with asyncio.timeout(_PROGRAM_APPEARS_S):
                while True:
                    row = self._books.required(ref)
                    if row.state is not MachineState.RUNNING or row.keeper is None:
                        return False
                    program = await asyncio.to_thread(_program_of, row.keeper)
                    if program is not None and send_signal(program, signal_number):
                        return True
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            return False

    def break_gpus(self, ref: str, wrong: str) -> MachineRow:
        """From now on the machine's GPUs have this fault, one of `nvidia_smi.WRONGS`; empty: they have none. Raises
        ValueError for one that is not known, or a machine without GPUs."""
        gpus = self._books.required(ref).facts.get(GPUS)
        if gpus is None or wrong not in {*WRONGS, ""}:
            known = ", ".join(WRONGS)
            raise ValueError(f"wrong is {wrong!r} for machine {ref}; it needs GPUs, and one of: {known}")
        row = self.update_facts(ref, **{GPUS: {**gpus, "wrong": wrong}})
        if row.is_live and row.state is MachineState.RUNNING:
            self._files(ref).show_gpus(EmulatedGpus(**row.facts[GPUS]).script())
        return row

    async def preempt(self, ref: str, notice_ms: int, then: Then = Then.END) -> MachineRow:
        """The company takes the machine back: SIGINT to its program, and the end (or stop) after the notice. Without a
        notice its program hears nothing."""
        if notice_ms > 0:
            await self.signal_inside(ref, signal.SIGINT)
        return self.set_deadline(ref, self.now_ms() + notice_ms, then, Cause.COMPANY)

    # -- booting

    def _take_up(self, machine: MachineRow, last_alive_ms: int) -> None:
        """A machine of an earlier process: go on with its ending, its boot or its life, or note how it ended."""
        if machine.ending is not None:
            self._carry_out(machine.ref)
        elif machine.state is MachineState.BOOTING:
            self._boot_later(machine)
        elif machine.state is MachineState.RUNNING and machine.keeper is not None and not is_alive(machine.keeper):
            self._note_exit(machine, last_alive_ms)

    def _boot_later(self, machine: MachineRow) -> None:
        if machine.boot_at_ms is not None:
            self._boots[machine.ref] = asyncio.create_task(self._boot(machine.ref, machine.boot_at_ms))

    async def _boot(self, ref: str, boot_at_ms: int) -> None:
        await asyncio.sleep(max(0, boot_at_ms - self.now_ms()) / 1000)
        if ref in self._endings:
            await asyncio.wait([self._endings[ref]])  # it still clears up after the time before
        self._boots.pop(ref, None)
        machine = self._books.required(ref)
        if machine.state is MachineState.BOOTING and machine.ending is None:
            await self._kill(machine)  # the process before us may have got so far as to start it
            machine = self._books.required(ref)
        if machine.state is MachineState.BOOTING and machine.ending is None:
            self._launch(machine)

    def _cancel_boot(self, ref: str) -> None:
        boot = self._boots.pop(ref, None)
        if boot is not None:
            boot.cancel()

    def _launch(self, machine: MachineRow) -> None:
        files, (program, given) = self._files(machine.ref), self._books.program(machine.ref)
        environment = {**given, **self._options.surroundings()}
        try:
            agent = replace(self._agent, command=list(program.command))
            dies = self._options.die_with_us
            gpus = machine.facts.get(GPUS)
            emulated = None if gpus is None else EmulatedGpus(**gpus)
            shown = None if emulated is None else emulated.script()
            plays = "" if emulated is None else emulated.plays
            files.prepare(
                environment, agent, die_with_cloud=dies, script=program.script, nvidia_smi=shown, torch_plays=plays
            )
            keeper = launch(files)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _log.exception("machine %s could not be started", machine.ref)
            with suppress(OSError):
                files.wipe()  # no token may stay, should nothing more be written down
            self._decide(machine.ref, MachineState.ENDED, Cause.FAILURE, f"could not be started: {error}")
            return
        self._keepers[machine.ref] = keeper
        now_ms = self.now_ms()
        ready_ms = now_ms if machine.ready_ms is None else machine.ready_ms
        self._tell(
            self._books.enter(
                machine.ref, MachineState.RUNNING, now_ms, ready_ms=ready_ms, keeper=keeper.identity, exit_code=None
            )
        )

    # -- ending and stopping

    async def _bring(self, ref: str, state: MachineState, cause: Cause, detail: str) -> MachineRow:
        task = self._decide(ref, state, cause, detail)
        while task is not None:
            await asyncio.shield(task)
            undone = self._books.required(ref).ending is not None  # that task cleared up after something else
            task = self._carry_out(ref) if undone else None
        return self._books.required(ref)

    def _decide(self, ref: str, state: MachineState, cause: Cause, detail: str) -> asyncio.Task[None] | None:
        """Write down that the machine is to end or stop, and see to it. None: it has already."""
        row = self._books.required(ref)
        if row.state in {state, MachineState.ENDED} and row.ending is None:
            return None
        if row.ending is None or row.ending.state not in {state, MachineState.ENDED}:
            self._books.change(ref, ending=MachineEnding(state, cause, detail, self.now_ms()))
        return self._carry_out(ref)

    def _carry_out(self, ref: str) -> asyncio.Task[None]:
        """All who want the same machine gone wait for the same ending."""
        task = self._endings.get(ref)
        if task is None or task.done():
            self._cancel_boot(ref)
            task = self._endings[ref] = asyncio.create_task(self._kill_and_enter(ref))
            task.add_done_callback(lambda finished: self._ending_done(ref, finished))
        return task

    async def _kill_and_enter(self, ref: str) -> None:
        while True:
            row = self._books.required(ref)
            await self._kill(row)
            ending = self._books.required(ref).ending
            if ending is None or ending == row.ending:
                break  # else a stop became an end meanwhile
        if ending is not None:
            accepted_ms = row.facts.get(ACCEPTED) if ending.state is MachineState.ENDED else None
            at_ms = self.now_ms() if accepted_ms is None else accepted_ms
            try:
                self._enter_end(ref, ending.state, ending.cause, ending.detail, at_ms)
            finally:
                await self._clear_up(ref, is_over=ending.state is MachineState.ENDED)

    def _enter_end(
        self, ref: str, state: MachineState, cause: Cause, detail: str, at_ms: int, exit_code: int | None = None
    ) -> None:
        columns: dict[str, Any] = {"cause": cause, "detail": detail, "keeper": None, "ending": None}
        if exit_code is not None:
            columns["exit_code"] = exit_code
        if state is MachineState.STOPPED:
            columns["stopped_ms"] = at_ms
        self._tell(self._books.enter(ref, state, at_ms, **columns))

    def _ending_done(self, ref: str, finished: asyncio.Task[None]) -> None:
        """Who watches tries again what failed, after a pause."""
        failed = not finished.cancelled() and finished.exception() is not None
        if failed:
            _log.error("machine %s: %s", ref, finished.exception())
            finished.get_loop().call_later(_WATCH_AFTER_FAILURE_S, self._forget_ending, ref, finished)
        else:
            self._forget_ending(ref, finished)

    def _forget_ending(self, ref: str, finished: asyncio.Task[None]) -> None:
        if self._endings.get(ref) is finished:
            del self._endings[ref]

    async def _kill(self, machine: MachineRow) -> None:
        if machine.state is MachineState.STOPPED:
            return
        # What we have not started ourselves may have been started by the process before us, and by nobody else.
        if machine.keeper is None and machine.ref not in self._keepers and machine.ref not in self._taken_up:
            return
        if not await asyncio.to_thread(self._files(machine.ref).kill, machine.keeper):
            raise RuntimeError(f"machine {machine.ref} has processes that survive SIGKILL")

    async def _clear_up(self, ref: str, *, is_over: bool = False) -> None:
        """A rented disk is gone with its machine; only the log stays. `is_over`: it has ended, written down or not."""
        keeper = self._keepers.pop(ref, None)
        try:
            if keeper is not None:
                await asyncio.to_thread(keeper.collect)
        finally:
            if is_over or not self._books.required(ref).is_live:
                await asyncio.to_thread(self._files(ref).wipe)

    # -- watching

    async def _watch_machines(self) -> None:
        noted_ms = 0
        while True:
            now_ms, pause_s = self.now_ms(), _WATCH_S
            try:
                for machine in self._books.live():
                    self._look_at(machine, now_ms)
                if now_ms - noted_ms >= _ALIVE_EVERY_MS:
                    noted_ms = now_ms
                    self._books.remember(_ALIVE, now_ms)
            except sqlite3.Error as error:  # a full disk, mostly: machines are watched again when it is over
                _log.error("the machines could not be looked after: %s", error)
                pause_s = _WATCH_AFTER_FAILURE_S
            await asyncio.sleep(pause_s)

    def _look_at(self, machine: MachineRow, now_ms: int) -> None:
        if machine.ref in self._endings:
            return
        if machine.ending is not None:
            self._carry_out(machine.ref)  # it did not work the last time
        elif machine.state is MachineState.RUNNING and machine.keeper is not None and not is_alive(machine.keeper):
            self._note_exit(machine, now_ms)
        elif machine.due_ms is not None and now_ms >= machine.due_ms and machine.at_deadline is not Then.STAY:
            why = "its time is over" if machine.deadline_cause is Cause.DEADLINE else "taken back by the company"
            self._decide(machine.ref, _STATE_AFTER[machine.at_deadline], machine.deadline_cause, why)

    def _note_exit(self, machine: MachineRow, seen_ms: int) -> None:
        """Its program has ended by itself. Without its keeper's word, that was when it was last seen."""
        end = self._files(machine.ref).end()
        cause, at_ms = (Cause.PROGRAM, end.ended_ms) if end else (Cause.FAILURE, seen_ms)
        code = end.exit_code if end else None
        if machine.when_it_exits is Then.STAY:
            columns = {"cause": cause, "detail": _describe(end), "keeper": None, "exit_code": code}
            self._tell(self._books.change(machine.ref, **columns))
        else:
            self._enter_end(machine.ref, _STATE_AFTER[machine.when_it_exits], cause, _describe(end), at_ms, code)
        task = self._endings[machine.ref] = asyncio.create_task(self._clear_remains(machine))
        task.add_done_callback(lambda finished: self._ending_done(machine.ref, finished))

    async def _clear_remains(self, machine: MachineRow) -> None:
        await self._kill(machine)  # a keeper that was itself killed leaves things behind
        await self._clear_up(machine.ref)

    # -- small things

    def mark_of(self, ref: str) -> str:
        """What all processes of the machine carry as MACHINE_ID_VARIABLE. Refs are numbers at some companies, and two
        emulators on one host may give the same: what one of them ends must not be the other's."""
        return f"{ref}.{self._mark}"

    def _files(self, ref: str) -> MachineFiles:
        return MachineFiles(self._options.data_dir, ref, self.mark_of(ref))

    def _tell(self, row: MachineRow) -> MachineRow:
        self._pulse.set()
        self._pulse = asyncio.Event()
        for listener in self._listeners:
            try:
                listener(row)
            except Exception:
                _log.exception("a listener failed for machine %s", row.ref)
        return row


_STATE_AFTER = {Then.END: MachineState.ENDED, Then.STOP: MachineState.STOPPED}


def _program_of(keeper: ProcessIdentity) -> ProcessIdentity | None:
    """The keeper's first child; orphans fall to it later."""
    children = [row.identity for row in process_table() if row.parent_pid == keeper.pid]
    return min(children, key=lambda child: (len(child.started), child.started, child.pid), default=None)


def _describe(end: MachineEnd | None) -> str:
    if end is None:
        return "its processes disappeared"
    if end.exit_code < 0:
        return f"its program was killed by signal {-end.exit_code}"
    return f"its program exited with code {end.exit_code}"
