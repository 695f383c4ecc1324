"""What becomes of machines on a real Slurm, whoever ends them, and of everybody else's jobs: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.errors import InvalidRequest, NoCapacity, OutcomeUnknown, PriceMoved, Transient
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.conformance.suite import new_label
from providers.slurm.adapter import SlurmProvider
from providers.slurm.marks import SlurmMark, ref_of
from tests.providers.cloud_process import eventually
from tests.providers.slurm.account import adapter, job_of, request, shape
from tests.slurm_cluster import SlurmCluster


async def rent(provider: SlurmProvider, **bootstrap: str) -> Machine:
    (offer, *_) = await provider.offers()
    return await provider.create(request(offer, **bootstrap))


async def until(provider: SlurmProvider, ref: str, holds: Callable[[Machine], bool]) -> Machine:
    async with asyncio.timeout(60):
        while True:
            machine = await provider.get(ref)
            assert machine is not None
            if holds(machine):
                return machine
            await asyncio.sleep(0.05)


async def running(provider: SlurmProvider, **bootstrap: str) -> Machine:
    machine = await rent(provider, **bootstrap)
    return await until(provider, machine.ref, lambda seen: seen.status is MachineStatus.RUNNING)


def over(machine: Machine) -> bool:
    return machine.status is MachineStatus.ENDED


async def test_an_offer_is_a_shape_and_its_region_names_the_pool(slurm: SlurmCluster) -> None:
    """Hardware as its owner says, tier own, no price, and how long it would take."""
    (offer,) = await adapter(slurm, shape("lab", gpu_count=2)).offers()
    assert (offer.key, offer.tier, offer.region, offer.price_per_hour) == ("slurm/lab", Tier.OWN, "lab", Money(0))
    assert (offer.gpu_type, offer.gpu_count, offer.gpu_memory_bytes >> 30, offer.cpus) == ("A100", 2, 80, 2)
    assert 15_000 <= offer.startup_ms < 30_000


async def test_a_machine_says_when_its_time_is_up(slurm: SlurmCluster) -> None:
    """The walltime is a lifetime."""
    machine = await running(adapter(slurm, shape(time_limit="7")))
    assert machine.ends_ms is not None
    assert machine.billed_from_ms is not None
    assert machine.ends_ms - machine.billed_from_ms == 7 * 60_000


async def test_a_shape_that_cannot_be_had_in_time_offers_nothing(slurm: SlurmCluster) -> None:
    """A partition that is down, that is none, too much of anything, a time that is too long, and a queue that is."""
    shapes = [
        shape("closed", partition="closed"),
        shape("none", partition="nowhere"),
        shape("large", gpu_count=64),
        shape("long", time_limit="99-00:00:00"),
        shape("here"),
    ]
    provider = adapter(slurm, *shapes)
    assert [offer.offer_id for offer in await provider.offers()] == ["here"]
    slurm.until(slurm.submit("--partition=urgent", "--nodes=3", "--exclusive", "--time=60"), "RUNNING")
    assert await adapter(slurm, *shapes, max_wait_ms=120_000).offers() == []
    with pytest.raises(NoCapacity, match="would not start in time"):
        (offer,) = [offer for offer in await provider.offers() if offer.offer_id == "here"]
        await adapter(slurm, *shapes, max_wait_ms=120_000).create(request(offer))


async def test_a_shape_has_no_more_machines_than_it_may(slurm: SlurmCluster) -> None:
    """At its limit it offers nothing, and refuses whoever comes with an older offer."""
    provider = adapter(slurm, shape(most=1))
    (offer,) = await provider.offers()
    first = await provider.create(request(offer))
    assert await provider.offers() == []
    with pytest.raises(NoCapacity, match="as many as it may have"):
        await provider.create(request(offer))
    await provider.terminate(first.ref)
    await until(provider, first.ref, over)
    assert len(await provider.offers()) == 1


async def test_a_label_has_one_job_however_often_it_is_asked_for(slurm: SlurmCluster) -> None:
    """A second order under a label that has a live job submits nothing and sends whoever asks to look."""
    provider = adapter(slurm)
    (offer,) = await provider.offers()
    wanted = request(offer)
    machine = await provider.create(wanted)
    with pytest.raises(OutcomeUnknown, match="has the label"):
        await provider.create(wanted)
    assert [found.ref for found in await adapter(slurm).find(wanted.label)] == [machine.ref]


async def test_the_price_that_was_agreed_is_remembered_by_the_job(slurm: SlurmCluster) -> None:
    """Slurm knows no prices: what the pool asks goes with the job, for whichever process asks next."""
    (offer,) = await adapter(slurm).offers()
    priced = replace(offer, price_per_hour=Money(1_230_000))
    machine = await adapter(slurm).create(request(priced))
    (found,) = await adapter(slurm).find(machine.label or "")
    assert (machine.price_per_hour, found.price_per_hour) == (Money(1_230_000), Money(1_230_000))
    with pytest.raises(PriceMoved):
        await adapter(slurm).create(replace(request(priced), max_price_per_hour=Money(1_000_000)))


async def test_jobs_of_others_are_neither_seen_nor_touched(slurm: SlurmCluster) -> None:
    """Not by the same user and under a name like ours, nor with a comment like ours and another name."""
    provider = adapter(slurm)
    label = new_label()
    others = [
        slurm.submit(f"--job-name={label}", "--time=5"),
        slurm.submit("--job-name=mine", f"--comment={SlurmMark(label, 'a100', 0).comment}", "--time=5"),
        slurm.submit(f"--job-name={label}", "--comment=allpass", "--time=5"),
        slurm.submit("--job-name=two|\nlines", f"--comment=1|2\n{label}", "--time=5"),
    ]
    assert await provider.find(label) == [one for one in await provider.list_owned() if not over(one)] == []
    await provider.terminate(ref_of(others[1], label))  # its number with a label that it does not have
    for job_id in others:
        slurm.until(job_id, "RUNNING", "PENDING")


async def test_a_machine_that_its_queue_lost_ended_when_it_was_missed(slurm: SlurmCluster) -> None:
    """One that was seen and is not listed any more is over; one that never was is nothing. There is no accounting."""
    provider = adapter(slurm)
    machine = await running(provider)
    slurm.strike("squeue", "exit 0\n")
    gone = await provider.get(machine.ref)
    assert gone is not None
    assert over(gone)
    assert await provider.get(ref_of("4711", new_label())) is None


async def test_nothing_secret_can_be_seen_by_others(slurm: SlurmCluster) -> None:
    """What a machine joins with stands on no command line, and in nothing that Slurm tells of a job."""
    seen = slurm.folder / "argv"
    slurm.strike("sbatch", f'printf "%s\\n" "$@" >{seen}; env >>{seen}\n')
    machine = await running(adapter(slurm), ALLPASS_JOIN_TOKEN="hidden-token")
    assert "hidden-token" not in seen.read_text()
    assert "hidden-token" not in str(slurm.job(job_of(machine.ref)))
    log = slurm.logs / f"allpass-{machine.label}.log"
    assert log.stat().st_mode & 0o077 == 0
    assert "hidden-token" not in log.read_text()


async def test_a_job_has_a_folder_of_its_own_and_what_is_left_of_others_is_removed(slurm: SlurmCluster) -> None:
    """Where the agent keeps what it works on: on its node, by job; what no process has any more goes."""
    provider = adapter(slurm)
    first = await running(provider)
    (parent,) = eventually(lambda: list(slurm.scratch.iterdir()))
    eventually((parent / job_of(first.ref) / "pid").exists)
    await provider.terminate(first.ref)
    await until(provider, first.ref, over)
    second = await running(provider)
    eventually(lambda: {folder.name for folder in parent.iterdir()} == {job_of(second.ref)})


async def test_a_request_that_is_not_ours_is_refused(slurm: SlurmCluster) -> None:
    """An offer of another company, and a label that is no node's."""
    provider = adapter(slurm)
    (offer,) = await provider.offers()
    wanted: MachineRequest = request(offer)
    for wrong in (replace(wanted, offer=replace(offer, provider="vast")), replace(wanted, label="x;rm")):
        with pytest.raises(InvalidRequest):
            await provider.create(wrong)


# -- whoever ends it


@pytest.mark.parametrize("partition", ["main", "graced"])
async def test_a_preempted_machine_is_over_and_is_not_begun_again(slurm: SlurmCluster, partition: str) -> None:
    """Its agent is told; with a time of grace, the machine says at once that it ends earlier than it said."""
    provider = adapter(slurm, shape(partition=partition))
    machine = await running(provider)
    slurm.submit("--partition=urgent", "--nodes=3", "--exclusive", "--time=5")
    if partition == "graced":
        sooner = await until(provider, machine.ref, lambda seen: seen.ends_ms != machine.ends_ms)
        assert sooner.status is MachineStatus.RUNNING
        assert sooner.ends_ms is not None
        assert machine.ends_ms is not None
        assert machine.ends_ms - sooner.ends_ms > 300_000
        return
    ended = await until(provider, machine.ref, over)
    assert ended.detail == "preempted"
    assert [line for line in slurm.call("squeue", "-h", "-o", "%j").split() if line == machine.label] == []


async def test_a_machine_that_somebody_else_cancels_is_over(slurm: SlurmCluster) -> None:
    """With its times, as Slurm has them."""
    provider = adapter(slurm)
    machine = await running(provider)
    slurm.call("scancel", job_of(machine.ref))
    ended = await until(provider, machine.ref, over)
    assert ended.detail == "cancelled"
    assert ended.billed_to_ms == int(slurm.job(job_of(machine.ref))["EndTime"]) * 1000


@pytest.mark.beyond_sample  # it waits for a minute of Slurm, and for the next look
async def test_a_machine_whose_time_is_up_is_over(slurm: SlurmCluster) -> None:
    """Slurm itself ends it, at its next look after the minute that it had."""
    provider = adapter(slurm, shape(time_limit="1"))
    machine = await running(provider)
    async with asyncio.timeout(120):
        while not over(seen := await until(provider, machine.ref, lambda _: True)):
            await asyncio.sleep(0.5)
    assert seen.detail == "timeout"


async def test_a_machine_whose_node_goes_down_is_over(slurm: SlurmCluster) -> None:
    """As soon as Slurm says so, and no sooner."""
    provider = adapter(slurm)
    machine = await running(provider)
    node = slurm.job(job_of(machine.ref))["NodeList"]
    slurm.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        ended = await until(provider, machine.ref, over)
        assert ended.detail in {"node_fail", "completed", "failed", "cancelled"}
    finally:
        slurm.resume(node)


async def test_a_controller_that_is_away_takes_no_machine_with_it(slurm: SlurmCluster) -> None:
    """Meanwhile nothing is known, which is not the same as gone; afterwards the machine is what it was."""
    provider = adapter(slurm)
    machine = await running(provider)
    slurm.stop("slurmctld")
    try:
        for call in (provider.list_owned(), provider.get(machine.ref), provider.offers(),
                     provider.terminate(machine.ref), provider.find(machine.label or "")):  # fmt: skip
            with pytest.raises(Transient):
                await call
    finally:
        slurm.start_controller()
    again = await until(provider, machine.ref, lambda seen: seen.status is MachineStatus.RUNNING)
    assert (again.billed_from_ms, again.ends_ms) == (machine.billed_from_ms, machine.ends_ms)


async def test_a_job_that_is_held_came_to_nothing(slurm: SlurmCluster) -> None:
    """It will not start by waiting: whoever waits for it takes the next offer."""
    provider = adapter(slurm)
    slurm.strike("sbatch", '{real} --hold "$@"; exit\n')
    machine = await until(provider, (await rent(provider)).ref, lambda _: True)
    assert machine.status is MachineStatus.STOPPED
    assert "JobHeldUser" in machine.detail


# -- commands that fail


@pytest.mark.parametrize(
    "fault",
    [
        "echo Submitted batch job 12 maybe; exit 0\n",
        "head -c 100000 /dev/urandom; exit 0\n",
        "exit 0\n",
        "echo 12 13 x; exit 0\n",
        'echo "something new" >&2; exit 7\n',
        'trap "" TERM INT; while :; do sleep 1; done\n',
    ],
)
async def test_an_answer_to_an_order_that_is_none_is_unknown(slurm: SlurmCluster, fault: str) -> None:
    """Rubbish, silence, words that nobody knows, and no end: whoever asks looks, and orders anew when there is none."""
    provider = adapter(slurm, timeout_s=2.0)
    (offer,) = await provider.offers()
    wanted = request(offer)
    slurm.strike("sbatch", fault)
    with pytest.raises(OutcomeUnknown):
        await provider.create(wanted)
    assert await provider.find(wanted.label) == []
    assert (await provider.create(wanted)).label == wanted.label


@pytest.mark.parametrize("name", ["squeue", "scancel", "sinfo"])
async def test_a_command_that_hangs_is_ended_with_all_it_started(slurm: SlurmCluster, name: str) -> None:
    """It was not known to have had an effect; nothing of it goes on."""
    provider = adapter(slurm, timeout_s=1.0)
    machine = await running(adapter(slurm))
    slurm.strike(name, "sleep 600 & sleep 601\n")
    with pytest.raises(Transient, match="did not answer within 1 s"):
        await (provider.offers() if name == "sinfo" else provider.terminate(machine.ref) if name == "scancel"
               else provider.list_owned())  # fmt: skip
    sleepers = [pid for pid in slurm.processes() if b"sleep\x00600" in _command(pid)]
    assert sleepers == []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_commands_that_are_not_there_are_no_gone_machines(slurm: SlurmCluster) -> None:
    """A wrong folder is a thing to mend, and concludes nothing."""
    provider = adapter(slurm, commands="/nowhere")
    with pytest.raises(Transient, match="/nowhere/squeue cannot be started"):
        await provider.list_owned()
