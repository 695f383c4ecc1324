"""A machine is compared with what its offer promised: it may have more, and may not have less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.promised import (
    GpuInquiry,
    GpuReport,
    SeenGpu,
    breaches,
    disk_breach,
    disk_shortage,
    free_disk_of,
    is_judged,
    report_of,
    why_not_judged,
)

GIB = 1024**3
OFFER = Offer("vast", "7", Tier.MARKETPLACE, "A100", 2, 40 * GIB, 8, 64 * GIB, Money(1_000_000), 36_000)
GPU = SeenGpu("NVIDIA A100-SXM4-40GB", 40 * GIB, 0)
GOOD = GpuReport(GpuInquiry.ANSWERS, 2, (GPU, GPU), "580.95.05", 13.0)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=6),
    max_leaves=12,
)
gpu_facts = st.fixed_dictionaries(
    {},
    optional={"index": json_values, "name": json_values, "memory_mib": json_values, "ecc_errors": json_values},
)
told = st.fixed_dictionaries(
    {"state": st.sampled_from([*GpuInquiry]) | json_values},
    optional={"count": json_values, "driver": json_values, "cuda": json_values, "message": json_values},
)


def with_gpus(*gpus: SeenGpu, **more: Any) -> GpuReport:
    return replace(GOOD, count=len(gpus), gpus=gpus, **more)


def test_a_machine_that_is_what_was_rented_lacks_nothing() -> None:
    """Driver included."""
    assert breaches(OFFER, GOOD, cuda=13.0) == ()


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (with_gpus(GPU), "it has 1 GPUs, 2 were promised"),
        (with_gpus(GPU, replace(GPU, name="NVIDIA A10")), "its GPU is NVIDIA A10, A100 was promised"),
        (with_gpus(GPU, replace(GPU, memory_bytes=24 * GIB)), "a GPU has 24.0 GiB, 40.0 GiB were promised"),
        (replace(GOOD, cuda=12.4, driver="550.90.07"), "its driver 550.90.07 knows CUDA up to 12.4, 13.0 was promised"),
        (replace(GOOD, cuda=12.4, driver=""), "its driver knows CUDA up to 12.4, 13.0 was promised"),
        (with_gpus(GPU, replace(GPU, ecc_errors=3)), "its GPU memory has had 3 errors that could not be corrected"),
        (GpuReport(GpuInquiry.FAILS, why="GPU is lost"), "nvidia-smi does not answer there: GPU is lost"),
        (GpuReport(GpuInquiry.FAILS), "nvidia-smi does not answer there: it says nothing"),
        (GpuReport(GpuInquiry.ANSWERS, 0), "it has 0 GPUs, 2 were promised"),
    ],
)
def test_what_it_lacks_is_said_in_words(report: GpuReport, said: str) -> None:
    """One breach, one sentence."""
    (breach,) = breaches(OFFER, report, cuda=13.0)
    assert breach.startswith(said)


def test_all_that_it_lacks_is_said() -> None:
    """Whoever reads it wants to know whether it is a mistake or a fraud."""
    report = with_gpus(SeenGpu("NVIDIA T4", 15 * GIB, 1), cuda=12.2)
    assert len(breaches(OFFER, report, cuda=13.0)) == 5


@pytest.mark.parametrize(
    "report",
    [
        with_gpus(GPU, GPU, GPU, GPU),
        with_gpus(GPU, GPU, SeenGpu("NVIDIA GeForce GT 1030", 2 * GIB, None)),  # one for a screen
        with_gpus(GPU, replace(GPU, name="Graphics Device")),
        with_gpus(*(replace(GPU, memory_bytes=80 * GIB) for _ in range(2))),
        with_gpus(*(replace(GPU, memory_bytes=None, ecc_errors=None) for _ in range(2))),
        with_gpus(*(replace(GPU, memory_bytes=5 * GIB, is_cut=True) for _ in range(2))),  # cut into instances
        replace(GOOD, cuda=None, driver=""),
        GpuReport(GpuInquiry.ABSENT),
        GpuReport(GpuInquiry.SHARED),
    ],
)
def test_a_machine_with_more_or_that_does_not_tell_is_let_in(report: GpuReport) -> None:
    """What it does not say is not held against it."""
    assert breaches(OFFER, report, cuda=13.0) == ()


@pytest.mark.parametrize(
    ("name", "promised_gib", "shown_mib"),
    [  # as companies list them, and as nvidia-smi shows them: rounded, and less what error correction takes
        ("A10", 24, 23_028),
        ("L4", 24, 23_034),
        ("L40S", 48, 46_068),
        ("T4", 16, 15_360),
        ("V100", 16, 16_160),
        ("H100", 80, 81_559),
        ("B200", 180, 183_359),
        ("A6000", 48, 49_140),
        ("RTX4090", 24, 24_564),
    ],
)
def test_what_error_correction_takes_is_no_breach(name: str, promised_gib: int, shown_mib: int) -> None:
    """Cards of today, at the companies that are known here."""
    offer = replace(OFFER, gpu_type=name, gpu_count=1, gpu_memory_bytes=promised_gib * GIB)
    assert breaches(offer, with_gpus(SeenGpu(f"NVIDIA {name}", shown_mib * 1024**2, 0))) == ()


def test_a_report_is_read_from_the_facts_of_a_host() -> None:
    """As agents tell them."""
    gpu = {"index": 0, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40_960, "ecc_errors": 0, "mig": False}
    looked = {"state": "answers", "count": 2, "driver": "580.95.05", "cuda": "13.0"}
    assert report_of({"gpus": [gpu, {**gpu, "index": 1}], "nvidia_smi": looked, "cpus": 8}) == GOOD


@pytest.mark.parametrize(
    "host", [{}, {"gpus": []}, {"gpus": 2, "nvidia_smi": None}, {"nvidia_smi": {"state": "asleep"}}]
)
def test_an_agent_of_another_release_tells_nothing(host: dict[str, Any]) -> None:
    """One that does not say it yet, or in words that are not known here."""
    assert report_of(host) is None
    assert not is_judged(None)
    assert "another release" in why_not_judged(None)


def test_it_is_said_why_a_machine_was_not_judged() -> None:
    """Each in its own words."""
    words = {why_not_judged(report) for report in (None, GpuReport(GpuInquiry.ABSENT), GpuReport(GpuInquiry.SHARED))}
    assert len(words) == 3
    assert [is_judged(GpuReport(seen)) for seen in GpuInquiry] == [True, True, False, False]


@given(st.fixed_dictionaries({"gpus": st.lists(gpu_facts, max_size=5) | json_values, "nvidia_smi": told | json_values}))
def test_whatever_an_agent_says_is_read_and_compared(host: dict[str, Any]) -> None:
    """It is data from outside: it never raises, and what is said of it can be shown on one line."""
    report = report_of(host)
    if report is not None:
        for breach in breaches(OFFER, report, cuda=13.0):
            assert breach.isprintable()
            assert len(breach) < 2_000


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 200), st.integers(1, 200))
def test_more_is_never_worse(promised: int, found: int, promised_gib: int, found_gib: int) -> None:
    """A machine that is let in is let in with more GPUs and more memory, too."""
    offer = replace(OFFER, gpu_count=promised, gpu_memory_bytes=promised_gib * GIB)

    def lacks(gpus: int, gib: int) -> bool:
        return bool(breaches(offer, with_gpus(*(replace(GPU, memory_bytes=gib * GIB) for _ in range(gpus)))))

    if not lacks(found, found_gib):
        assert not lacks(found + 1, found_gib)
        assert not lacks(found, found_gib + 1)
    if found < promised:
        assert lacks(found, found_gib)


# -- its disk


@pytest.mark.parametrize(
    ("free_gib", "promised_gib", "expected"),
    [(64, 64, True), (48, 64, True), (47, 64, False), (0, 64, False), (0, 0, True)],
)
def test_a_disk_has_to_be_as_promised(free_gib: int, promised_gib: int, expected: bool) -> None:
    """A quarter may be taken already; where nothing was promised, nothing is asked for."""
    offer = replace(OFFER, disk_bytes=promised_gib * GIB)
    lacks = disk_breach(offer, {"disk": {"free_bytes": free_gib * GIB, "total_bytes": 900 * GIB}})
    assert (lacks == "") is expected
    if lacks:
        assert lacks == f"its disk has {free_gib}.0 GiB free, {promised_gib}.0 GiB were promised"


def test_a_disk_that_has_no_room_for_two_checkpoints_is_told() -> None:
    """The one that a run begins with, and the one that it writes."""
    host = {"disk": {"free_bytes": 50 * GIB}}
    assert disk_shortage(host, 25 * GIB) == ""
    assert disk_shortage(host, 26 * GIB) == (
        "its checkpoints are 26.0 GiB each, and the disk of its machine has 50.0 GiB free: 2 of them may have to lie "
        "there at once; rent more"
    )


@given(json_values, st.integers(0, 2**50))
def test_a_disk_that_is_not_told_lacks_nothing(told: Any, size: int) -> None:
    """Whatever the report looks like."""
    for host in ({"disk": told}, {"disk": {"free_bytes": told}}, {}):
        if not (isinstance(told, int) and not isinstance(told, bool)):
            assert free_disk_of(host) is None
            assert disk_breach(replace(OFFER, disk_bytes=size), host) == disk_shortage(host, size) == ""
