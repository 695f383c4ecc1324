"""The machines of an emulated account: their states, their processes, and what survives a restart."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path

import pytest

from providers.emulators.estate import Estate, EstateOptions
from providers.emulators.rows import Cause, Interval, MachineProgram, MachineRow, MachineState, NewMachine, Then
from tests.living import files_with
from tests.providers.cloud_process import processes_of, processes_under
from tests.providers.emulators.conftest import OpenEstate
from workers.agent import blocks

PATIENCE_S = 30.0
IDLE = MachineProgram(script="echo up\nexec sleep 600\n")


async def reached(estate: Estate, ref: str, state: MachineState) -> MachineRow:
    """The machine, once it is in this state."""
    row = await estate.until(ref, lambda row: row.state is state and row.ending is None, PATIENCE_S)
    assert row is not None, estate.get(ref)
    return row


async def logged(estate: Estate, ref: str, text: str) -> str:
    """The machine's log, once it holds this text."""
    async with asyncio.timeout(PATIENCE_S):
        while text not in (log := estate.log_tail(ref, 1000)):
            await asyncio.sleep(0.02)
    return log


def mode_of(path: Path) -> int | None:
    """None: it is gone. An order is taken out of its file as a machine starts."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


async def test_a_machine_boots_runs_and_ends(estate: Estate) -> None:
    """A rented machine comes up by itself, runs its program, and ends with all of it, its time told without gaps."""
    row = estate.add(NewMachine("m-1", IDLE, label="ours", price_micros_per_hour=7, facts={"zone": "a"}))
    assert (row.state, row.label, row.facts) == (MachineState.BOOTING, "ours", {"zone": "a"})
    running = await reached(estate, "m-1", MachineState.RUNNING)
    await logged(estate, "m-1", "up")
    assert estate.live() == [running]
    ended = await estate.end("m-1")
    assert (ended.state, ended.cause) == (MachineState.ENDED, Cause.REQUEST)
    assert processes_of(estate.mark_of("m-1")) == []
    assert estate.live() == []
    assert estate.with_label("ours") == [ended]
    assert ended.ended_ms is not None
    assert running.ready_ms is not None
    assert ended.intervals == (
        Interval(MachineState.BOOTING, 7, row.created_ms, running.ready_ms),
        Interval(MachineState.RUNNING, 7, running.ready_ms, ended.ended_ms),
    )
    assert (await estate.end("m-1")).ended_ms == ended.ended_ms


async def test_a_program_finds_python_and_its_own_folder(estate: Estate, tmp_path: Path) -> None:
    """A command and a script run on the machine's disk, as their HOME, with the given variables and a `python3`."""
    words = 'print(os.environ["HOME"] == os.getcwd() == os.environ["ALLPASS_AGENT_ROOT"], os.environ["GIVEN"])'
    python = f"import os; {words}"
    script = f"#!/bin/sh -e\npython3 -S -c '{python}'\n"
    estate.add(NewMachine("script", MachineProgram(script=script), environment={"GIVEN": "one"}))
    estate.add(NewMachine("command", MachineProgram(("python3", "-S", "-c", python)), environment={"GIVEN": "two"}))
    for ref, given in (("script", "one"), ("command", "two")):
        ended = await reached(estate, ref, MachineState.ENDED)
        assert (ended.cause, ended.exit_code) == (Cause.PROGRAM, 0)
        assert estate.log_tail(ref, 10) == f"True {given}\n"
    # the disk goes with the machine, right after its end
    async with asyncio.timeout(PATIENCE_S):
        while (tmp_path / "estate/machines/script/root").exists():
            await asyncio.sleep(0.02)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give code a user of its own")
async def test_machines_run_code_as_different_users(estate: Estate) -> None:
    """Each machine has a block of user ids of its own on this host."""
    for ref in ("m-1", "m-2"):
        estate.add(NewMachine(ref, MachineProgram(script="echo $ALLPASS_AGENT_USER_UID; exec sleep 600")))
    uids = [int(await logged(estate, ref, "\n")) for ref in ("m-1", "m-2")]
    assert abs(uids[0] - uids[1]) >= blocks.SIZE


async def test_a_first_line_names_the_interpreter(estate: Estate) -> None:
    """A script runs under what its first line names, with its arguments."""
    estate.add(NewMachine("m-1", MachineProgram(script="#!/usr/bin/env python3\nprint(6 * 7)\n")))
    await reached(estate, "m-1", MachineState.ENDED)
    assert estate.log_tail("m-1", 10) == "42\n"


@pytest.mark.parametrize(
    ("then", "state"),
    [(Then.END, MachineState.ENDED), (Then.STOP, MachineState.STOPPED), (Then.STAY, MachineState.RUNNING)],
)
async def test_what_follows_the_end_of_a_program_is_the_companys_way(
    estate: Estate, then: Then, state: MachineState
) -> None:
    """When its program exits, a machine ends, stops or stays up, with the exit code known."""
    estate.add(NewMachine("m-1", MachineProgram(script="exit 3"), when_it_exits=then))
    row = await estate.until("m-1", lambda row: row.exit_code is not None, PATIENCE_S)
    assert row is not None
    assert (row.state, row.cause, row.exit_code) == (state, Cause.PROGRAM, 3)
    assert row.detail == "its program exited with code 3"


async def test_kill_inside_is_a_crash_of_the_program(estate: Estate) -> None:
    """SIGKILL inside ends the program with that signal; where nothing runs it says so."""
    estate.add(NewMachine("m-1", IDLE))
    await reached(estate, "m-1", MachineState.RUNNING)
    assert await estate.kill_inside("m-1")
    ended = await reached(estate, "m-1", MachineState.ENDED)
    assert ended.exit_code == -9
    assert not await estate.kill_inside("m-1")


async def test_a_preempted_machine_hears_of_it_first(estate: Estate) -> None:
    """A preemption interrupts the program, which may still write, and ends the machine after the notice."""
    script = "trap 'echo going' INT\necho up\nwhile :; do sleep 0.05; done"
    estate.add(NewMachine("m-1", MachineProgram(script=script)))
    await reached(estate, "m-1", MachineState.RUNNING)
    await logged(estate, "m-1", "up")
    await estate.preempt("m-1", notice_ms=3_600_000)  # however long its program takes to hear of it
    await logged(estate, "m-1", "going")
    row = await estate.preempt("m-1", notice_ms=700)
    ended = await reached(estate, "m-1", MachineState.ENDED)
    assert ended.cause is Cause.COMPANY
    assert ended.ended_ms is not None
    assert row.deadline_ms is not None
    assert ended.ended_ms >= row.deadline_ms
    assert processes_of(estate.mark_of("m-1")) == []


async def test_a_stopped_machine_keeps_its_disk_and_runs_again(estate: Estate) -> None:
    """Stopping kills what runs; starting again runs the same program on the same disk."""
    script = "n=$(ls | wc -l); touch file-$n; echo run $n; exec sleep 600"
    estate.add(NewMachine("m-1", MachineProgram(script=script), environment={"ANY": "thing"}))
    await reached(estate, "m-1", MachineState.RUNNING)
    await logged(estate, "m-1", "run 0")
    stopped = await estate.stop("m-1", Cause.COMPANY, "outbid")
    assert (stopped.state, stopped.cause, stopped.detail) == (MachineState.STOPPED, Cause.COMPANY, "outbid")
    assert stopped.stopped_ms is not None
    assert processes_of(estate.mark_of("m-1")) == []
    assert estate.start_again("m-1").state is MachineState.BOOTING
    await reached(estate, "m-1", MachineState.RUNNING)
    await logged(estate, "m-1", "run 1")
    states = [interval.state for interval in (await estate.end("m-1")).intervals]
    assert states == ["booting", "running", "stopped", "booting", "running"]


async def test_a_deadline_counts_from_being_ready_or_is_a_moment(estate: Estate) -> None:
    """A lifetime begins when the machine is up; a moment holds whenever it was set."""
    estate.add(NewMachine("lifetime", IDLE, boot_ms=300, lifetime_ms=400))
    moment = estate.add(NewMachine("moment", IDLE, boot_ms=None))
    estate.set_deadline("moment", moment.created_ms + 200, Then.STOP)
    ended = await reached(estate, "lifetime", MachineState.ENDED)
    assert ended.cause is Cause.DEADLINE
    assert ended.ready_ms is not None
    assert ended.ended_ms is not None
    assert ended.ready_ms >= ended.created_ms + 300
    assert ended.ended_ms >= ended.ready_ms + 400
    assert (await reached(estate, "moment", MachineState.STOPPED)).cause is Cause.DEADLINE


async def test_a_machine_that_never_boots_waits_until_told(estate: Estate) -> None:
    """Without a boot time a machine stays booting; it can be brought up, or ended without ever having run."""
    estate.add(NewMachine("up", IDLE, boot_ms=None))
    estate.add(NewMachine("gone", IDLE, boot_ms=None))
    estate.boot_now("up")
    await reached(estate, "up", MachineState.RUNNING)
    ended = await estate.end("gone")
    assert ended.ready_ms is None
    assert [interval.state for interval in ended.intervals] == [MachineState.BOOTING]


async def test_an_end_that_was_accepted_counts_from_then_on(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to kill what runs there."""
    estate.add(NewMachine("m-1", IDLE))
    await reached(estate, "m-1", MachineState.RUNNING)
    dies, kill = asyncio.Event(), estate._kill

    async def kill_later(machine: MachineRow) -> None:
        await dies.wait()
        await kill(machine)

    monkeypatch.setattr(estate, "_kill", kill_later)
    asked_ms = estate.now_ms()
    estate.end_soon("m-1", is_accepted=True)
    told_ms = estate.now_ms()
    while estate.now_ms() <= told_ms:
        await asyncio.sleep(0.001)
    dies.set()
    ended = await reached(estate, "m-1", MachineState.ENDED)
    assert ended.ended_ms is not None
    assert asked_ms <= ended.ended_ms <= told_ms
    assert ended.intervals[-1].to_ms == ended.ended_ms


async def test_ending_is_never_lost_to_other_wishes(estate: Estate) -> None:
    """Stops, starts and ends at once come to an end, once."""
    estate.add(NewMachine("m-1", IDLE))
    await reached(estate, "m-1", MachineState.RUNNING)
    estate.start_again("m-1")
    wishes = (estate.stop("m-1"), estate.end("m-1"), estate.stop("m-1"), estate.end("m-1"))
    rows = await asyncio.gather(*wishes)
    assert {row.state for row in rows} == {MachineState.ENDED}
    assert estate.start_again("m-1").state is MachineState.ENDED
    assert processes_of(estate.mark_of("m-1")) == []


async def test_a_restart_takes_up_what_the_books_say(open_estate: OpenEstate) -> None:
    """After a restart: running machines run on, booting ones boot, decisions are carried out, facts are kept."""
    first = await open_estate(die_with_us=False)
    for ref in ("runs", "doomed"):
        first.add(NewMachine(ref, IDLE))
        await logged(first, ref, "up")
    first.add(NewMachine("boots", IDLE, boot_ms=3_600_000))
    first.update_facts("runs", zone="b")
    first.remember("counter", [1, 2])
    number = first.next_number()
    await first.close()
    keepers = processes_of(first.mark_of("runs"))
    second = await open_estate(die_with_us=False)
    assert second.next_number() == number
    assert second.recall("counter") == [1, 2]
    runs = second.get("runs")
    assert runs is not None
    assert (runs.state, runs.facts) == (MachineState.RUNNING, {"zone": "b"})
    assert processes_of(second.mark_of("runs")) == keepers
    second.end_soon("doomed")
    await second.close()  # before or after it was carried out
    third = await open_estate(die_with_us=True)
    await reached(third, "doomed", MachineState.ENDED)
    third.boot_now("boots")
    await reached(third, "boots", MachineState.RUNNING)
    await third.end("runs")
    assert processes_of(third.mark_of("runs")) == []


async def test_programs_go_with_the_emulator_that_says_so(open_estate: OpenEstate, tmp_path: Path) -> None:
    """With machines that die with it, closing leaves no process; the next one notes the end."""
    first = await open_estate()
    first.add(NewMachine("m-1", IDLE))
    first.add(NewMachine("stays", IDLE, when_it_exits=Then.STAY))
    await reached(first, "m-1", MachineState.RUNNING)
    await reached(first, "stays", MachineState.RUNNING)
    await first.close()
    assert processes_under(tmp_path) == []
    second = await open_estate()
    assert (await reached(second, "m-1", MachineState.ENDED)).cause is Cause.FAILURE
    stays = await second.until("stays", lambda row: row.keeper is None, PATIENCE_S)
    assert stays is not None
    assert stays.state is MachineState.RUNNING


async def test_tokens_lie_in_private_files_only(estate: Estate, tmp_path: Path) -> None:
    """What a machine is given is readable by the owner only, and gone with the machine."""
    estate.add(
        NewMachine("m-1", MachineProgram(script="# t-secret\nexec sleep 600"), environment={"TOKEN": "t-secret"})
    )
    await reached(estate, "m-1", MachineState.RUNNING)

    found = files_with("t-secret", tmp_path / "estate")
    modes = [mode_of(path) for path in found if not path.name.startswith("emulator.")]
    assert {mode & 0o077 for mode in modes if mode is not None} == {0}
    assert stat.S_IMODE((tmp_path / "estate/emulator.sqlite").stat().st_mode) == 0o600
    await estate.end("m-1")
    assert {path.name.partition("-")[0] for path in files_with("t-secret", tmp_path / "estate")} <= {"emulator.sqlite"}


async def test_a_program_that_cannot_start_says_so(estate: Estate) -> None:
    """A command that does not exist ends the machine with the shell's own code, and a line in its log."""
    estate.add(NewMachine("m-1", MachineProgram(("/no/such/program",))))
    ended = await reached(estate, "m-1", MachineState.ENDED)
    assert ended.exit_code == 127
    assert "cannot start /no/such/program" in estate.log_tail("m-1", 5)


async def test_listeners_hear_of_every_state(estate: Estate) -> None:
    """A listener is told each new row; one that fails harms nobody."""
    seen: list[MachineState] = []

    def fails(_: MachineRow) -> None:
        raise RuntimeError("no")

    estate.listen(fails)
    estate.listen(lambda row: seen.append(row.state))
    estate.add(NewMachine("m-1", IDLE))
    await reached(estate, "m-1", MachineState.RUNNING)
    await estate.end("m-1")
    assert seen == [MachineState.BOOTING, MachineState.RUNNING, MachineState.ENDED]


async def test_a_new_price_holds_from_now_on(estate: Estate) -> None:
    """A change of price begins a new stretch; the machine goes on."""
    estate.add(NewMachine("m-1", IDLE, price_micros_per_hour=100))
    await reached(estate, "m-1", MachineState.RUNNING)
    row = estate.set_price("m-1", 250)
    assert [interval.price_micros_per_hour for interval in row.intervals] == [100, 100, 250]
    assert row.intervals[-1].to_ms is None
    assert row.intervals[-2].to_ms == row.intervals[-1].from_ms


async def test_refs_are_unique_and_texts_are_texts(estate: Estate) -> None:
    """A ref that is taken and a zero byte are refused; unknown refs are LookupErrors."""
    estate.add(NewMachine("m-1", IDLE, boot_ms=None))
    with pytest.raises(ValueError, match="m-1"):
        estate.add(NewMachine("m-1", IDLE))
    with pytest.raises(ValueError, match="zero byte"):
        estate.add(NewMachine("m-2", IDLE, environment={"A": "\0"}))
    with pytest.raises(ValueError, match="either"):
        MachineProgram(("a",), "b")
    with pytest.raises(LookupError):
        await estate.end("m-3")
    assert estate.get("m-3") is None


async def test_machines_of_the_same_name_elsewhere_are_left_alone(estate: Estate, tmp_path: Path) -> None:
    """Two emulators on one host may give the same ref: what ends in one goes on in the other."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere = Estate(EstateOptions(folder), lambda: time.time_ns() // 1_000_000)
    await elsewhere.open()
    try:
        for one in (estate, elsewhere):
            one.add(NewMachine("m-1", IDLE))
            await reached(one, "m-1", MachineState.RUNNING)
            await logged(one, "m-1", "up")
        theirs = processes_of(elsewhere.mark_of("m-1"))
        await estate.end("m-1")
        assert processes_of(elsewhere.mark_of("m-1")) == theirs != []
    finally:
        await elsewhere.close()
