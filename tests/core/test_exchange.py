"""What machines tell each other in a step, by numbers worked out by hand, and how fast their network is taken to be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.exchange import (
    ASSUMED_BITS_PER_S,
    Exchange,
    Meeting,
    Network,
    bytes_between,
    network_of,
    saved_under_one_switch,
)
from app.core.memory import Training, model_named
from app.core.roofline import trained_values

MODEL = model_named("llama-3.1-8b")
LORA = Training("lora", 1, 1024)
ADAPTERS = 41_943_040  # rank 16 on all matrices of an 8B model
WHOLE = 8_030_261_248


def laid(training: Training, gpus: int, accumulation: int, sharding: str = "ddp") -> Training:
    return replace(training, gpus=gpus, accumulation=accumulation, sharding=sharding)


def test_the_recipe_passes_a_share_of_every_part_to_each_of_its_processes() -> None:
    """A share of each part of the others and of the sums, for each GPU of a machine, as ADR 0134 says: for 8 rounds of
    adapters 0.6 s at 10 Gbit/s."""
    assert trained_values(MODEL, LORA) == ADAPTERS
    eight = bytes_between(MODEL, laid(LORA, 2, 8), 2, "recipe")
    assert eight == 9 * ADAPTERS * 4 // 2 == 754_974_720
    assert Exchange(eight, Network()).ms == pytest.approx(603.979776)
    # two machines with two GPUs each, three rounds: of two others a quarter, four times, to two processes, in float32
    assert bytes_between(MODEL, laid(LORA, 4, 3), 2, "recipe") == 4 * 2 * ADAPTERS * 4 * 2 // 4
    # four machines with two GPUs each: of six others an eighth, three times
    assert bytes_between(MODEL, laid(LORA, 8, 2), 4, "recipe") == 3 * 6 * ADAPTERS * 4 * 2 // 8
    full = replace(LORA, method="full")
    assert bytes_between(MODEL, laid(full, 2, 1), 2, "recipe") == WHOLE * 2, "in bf16, as its weights are"


def test_a_script_passes_rings_through_each_machine() -> None:
    """Twice what is trained but a part, and with weights that are gathered these too, in every micro-batch."""
    full = replace(LORA, method="full")
    assert bytes_between(MODEL, laid(full, 4, 8), 2, "script") == 2 * 3 * WHOLE * 2 // 4
    assert bytes_between(MODEL, laid(full, 4, 8, "zero2"), 2, "script") == 2 * 3 * WHOLE * 2 // 4
    gathered = 2 * 8 * 3 * WHOLE * 2 // 4
    assert bytes_between(MODEL, laid(full, 4, 8, "fsdp"), 2, "script") == 2 * 3 * WHOLE * 2 // 4 + gathered


@given(st.integers(2, 64), st.integers(1, 8), st.integers(1, 64))
def test_more_machines_never_pass_less_through_each(machines: int, gpus: int, rounds: int) -> None:
    """Nor do more rounds; and nothing passes where nothing has to."""
    told = bytes_between(MODEL, laid(LORA, machines * gpus, rounds), machines, "recipe")
    assert 0 < told <= bytes_between(MODEL, laid(LORA, (machines + 1) * gpus, rounds), machines + 1, "recipe")
    assert told < bytes_between(MODEL, laid(LORA, machines * gpus, 2 * rounds), machines, "recipe") < 2 * told
    assert bytes_between(MODEL, replace(LORA, accumulation=rounds), 1, "script") == 0


def test_a_network_is_the_middle_of_the_slowest_ways_of_its_newest_trainings() -> None:
    """Each step waits for the slowest machine; one training in a bad moment decides nothing."""
    met = [
        Meeting("run_c", 9_000_000_000),
        Meeting("run_c", 2_000_000_000),
        Meeting("run_b", 8_000_000_000),
        Meeting("run_a", 7_000_000_000),
    ]
    assert network_of(met) == Network(7_000_000_000, "measured", 3)
    old = [Meeting(f"run_{number}", 1_000) for number in range(40)]
    new = [Meeting(f"run_n{number}", 25_000_000_000) for number in range(20)]
    assert network_of([*new, *old]) == Network(25_000_000_000, "measured", 20)


def test_what_is_stated_counts_first_and_nothing_is_assumed_silently() -> None:
    assert network_of([Meeting("run_a", 1)], 40_000_000_000) == Network(40_000_000_000, "stated")
    assert network_of([Meeting("run_a", 0)]) == network_of([]) == Network(ASSUMED_BITS_PER_S, "assumed")


def test_what_a_step_takes_less_under_one_switch_is_told_by_the_slowest_ways() -> None:
    """125 MB at 1 Gbit/s, and at 10."""
    assert saved_under_one_switch(125_000_000, [10**10, 2 * 10**10], [10**9, 5 * 10**9]) == pytest.approx(900)
    assert saved_under_one_switch(125_000_000, [10**9], [10**10]) == 0, "never less than nothing"
    for near, far in (([], [10**9]), ([10**9], []), ([0], [10**9])):
        assert saved_under_one_switch(125_000_000, near, far) is None, "not measured"
