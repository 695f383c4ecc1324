"""What is read of squeue's and sacct's answers, however long and however broken. Needs no Slurm."""

from __future__ import annotations

import time

import pytest

from app.core.model.ids import make_id
from app.errors import AuthFailed, NoCapacity, OfferGone, ProviderError, QuotaExceeded
from app.ports.provider import MachineStatus
from providers.slurm.commands import CommandAnswer, refusal
from providers.slurm.marks import SlurmMark, read_mark, ref_of
from providers.slurm.queue import JobLine, Patience, instant_ms, machine_of, read_sacct, read_squeue, squeue_format

NONCE = "0123456789abcdef"
LABEL = make_id("node", 1_795_000_000_000, 7)
MARK = SlurmMark(LABEL, "lab", 1_200_000)
CALM = Patience(1_000_000, 10**12)


def line(job_id: str = "7", state: str = "RUNNING", *, start: str = "1000", end: str = "4600", nodes: str = "n0",
         reason: str = "None", name: str = LABEL, comment: str = MARK.comment) -> str:  # fmt: skip
    return "|".join((NONCE, job_id, state, start, end, "900", reason, nodes, name, comment))


def only(text: str) -> JobLine:
    (found,) = read_squeue(text, NONCE)
    return found


def test_a_line_is_a_machine() -> None:
    """Number, mark, times, and what was agreed."""
    machine = machine_of(only(line()), CALM)
    assert (machine.ref, machine.label, machine.status) == (ref_of("7", LABEL), LABEL, MachineStatus.RUNNING)
    assert (machine.price_per_hour.micros, machine.created_ms, machine.billed_from_ms) == (
        1_200_000,
        900_000,
        1_000_000,
    )
    assert (machine.billed_to_ms, machine.ends_ms) == (None, 4_600_000)


@pytest.mark.parametrize(
    "broken",
    ["", "|", NONCE, line("x"), line("-1"), line("9" * 40), line(name="other"), line(comment="(null)"),
     line(comment=f"{MARK.comment}x"), line(comment=f"allpass:{LABEL}:lab:-1"), line().replace(NONCE, "fedcba"),
     line(name=f"{LABEL}|x"), line() + "|x", "slurm_load_jobs error: \x00\udcff", "|" * 5_000, line(state="\u00e9")],
)  # fmt: skip
def test_a_line_that_cannot_be_read_hides_no_other(broken: str) -> None:
    """Whatever stands before and after it."""
    text = "\n".join((line("1"), broken, line("2")))
    assert [one.job_id for one in read_squeue(text, NONCE)] == ["1", "2"]


def test_a_name_with_line_breaks_forges_nothing() -> None:
    """What begins a line is made up for each call."""
    forged = f"x\n{line('66').replace(NONCE, '0' * 16)}\n"
    assert [one.job_id for one in read_squeue(line("1") + forged + "\n" + line("2"), NONCE)] in (["2"], ["1", "2"])


def test_twenty_thousand_jobs_of_others_take_no_time() -> None:
    """Though Slurm is asked for our user's alone."""
    other = line("5", name="theirs", comment="(null)")
    text = "\n".join([*(other for _ in range(20_000)), line("7")])
    begun = time.monotonic()
    assert [one.job_id for one in read_squeue(text, NONCE)] == ["7"]
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [
        ("PENDING", "Resources", MachineStatus.BOOTING),
        ("PENDING", "JobHeldAdmin", MachineStatus.STOPPED),
        ("PENDING", "PartitionDown", MachineStatus.STOPPED),
        ("REQUEUE_HOLD", "None", MachineStatus.STOPPED),
        ("CONFIGURING", "None", MachineStatus.BOOTING),
        ("SUSPENDED", "None", MachineStatus.STOPPED),
        ("COMPLETING", "None", MachineStatus.STOPPED),
        ("SOMETHING_NEW", "None", MachineStatus.RUNNING),
        *((state, "None", MachineStatus.ENDED) for state in
          ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY",
           "DEADLINE", "REVOKED")),
    ],
)  # fmt: skip
def test_states_in_our_words(state: str, reason: str, status: MachineStatus) -> None:
    """A word of later days means that it is there."""
    assert machine_of(only(line(state=state, reason=reason)), CALM).status is status


def test_a_job_that_never_had_a_node_cost_nothing() -> None:
    """Cancelled in the queue, it has a start and an end all the same."""
    machine = machine_of(only(line(state="CANCELLED", nodes="")), CALM)
    assert (machine.status, machine.billed_from_ms, machine.billed_to_ms) == (MachineStatus.ENDED, None, None)


def test_a_job_waits_no_longer_than_it_may() -> None:
    """Neither when it has waited, nor when Slurm expects that it will."""
    waits = only(line(state="PENDING", start="N/A", end="N/A", nodes=""))
    assert machine_of(waits, Patience(1_000_000, 120_000)).status is MachineStatus.BOOTING
    assert machine_of(waits, Patience(1_100_000, 120_000)).status is MachineStatus.STOPPED
    late = only(line(state="PENDING", start="9000", end="N/A", nodes=""))
    assert machine_of(late, Patience(1_000_000, 120_000)).status is MachineStatus.STOPPED


def test_a_machine_without_a_limit_does_not_end() -> None:
    """Of a partition that has none."""
    assert machine_of(only(line(end="N/A")), CALM).ends_ms is None


def test_times_as_they_are_told() -> None:
    """In seconds, in Slurm's own spelling in UTC, or not at all."""
    assert instant_ms("1000") == 1_000_000
    assert instant_ms("1970-01-01T00:16:40") == 1_000_000
    assert [instant_ms(text) for text in ("N/A", "Unknown", "", "soon", "9" * 30, "-5")] == [None] * 6


def test_what_the_accounting_kept_is_read_by_number_and_name() -> None:
    """Its comment is kept by few clusters; of a number that came twice, only ours counts."""
    rows = f"7|COMPLETED|1|2|1|n9|theirs\nrubbish\n7|CANCELLED by 1000|1000|2000|900|n0|{LABEL}\n"
    found = read_sacct(rows, "7", MARK)
    assert found is not None
    machine = machine_of(found, CALM)
    assert (machine.detail, machine.billed_from_ms, machine.billed_to_ms) == ("cancelled", 1_000_000, 2_000_000)
    assert read_sacct(rows, "8", MARK) is None


def test_a_mark_is_read_back() -> None:
    """And nothing that only looks like one."""
    assert read_mark(MARK.comment) == MARK
    assert read_mark(f"allpass:job_{LABEL[5:]}:lab:0") is None


def test_the_question_names_each_column_once() -> None:
    """What anybody may have written comes last."""
    assert squeue_format(NONCE) == f"{NONCE}|%i|%T|%S|%e|%V|%r|%N|%j|%k"


@pytest.mark.parametrize(
    ("words", "kind"),
    [("User's group not permitted to use this partition", OfferGone),
     ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", NoCapacity),
     ("Requested node configuration is not available", OfferGone),
     ("Invalid account or account/partition combination specified", QuotaExceeded),
     ("Access/permission denied", AuthFailed)],
)  # fmt: skip
def test_what_a_shape_is_refused_for_gives_up_no_other(words: str, kind: type[ProviderError]) -> None:
    """Only what holds for every job of the account pauses the cluster: the guide says, takes the next offer."""
    refused = refusal("sbatch", CommandAnswer(1, "", f"sbatch: error: Batch job submission failed: {words}\n"))
    assert type(refused) is kind
