"""What the owner of an installation may say of a cluster, and how a mistake is told. Needs no Slurm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.errors import InvalidRequest
from app.ports.provider import MachineRequest
from app.stack.outside import withheld_settings
from providers.conformance.suite import new_label
from providers.slurm.marks import SlurmMark
from providers.slurm.options import SlurmOptions
from providers.slurm.plugin import SlurmSettings
from providers.slurm.script import batch_script
from providers.slurm.submission import offer_of, order
from tests.providers.slurm.account import request, shape


def settings(monkeypatch: pytest.MonkeyPatch, *shapes: dict[str, Any], **given: str) -> SlurmSettings:
    monkeypatch.setenv("ALLPASS_SLURM_SHAPES", json.dumps(shapes))
    for name, value in given.items():
        monkeypatch.setenv(f"ALLPASS_SLURM_{name.upper()}", value)
    return SlurmSettings(_env_prefix="ALLPASS_SLURM_")  # type: ignore[call-arg]


CPU = {"name": "cpu", "partition": "short", "cpus": 4, "memory_gb": 8, "time_limit": "02:00:00"}


def test_without_shapes_the_provider_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with one it is there, and costs no money of a company."""
    assert not settings(monkeypatch).is_configured
    made = settings(monkeypatch, CPU)
    assert (made.is_configured, made.is_real) == (True, False)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": "Big"}, "name"),
        ({"partition": "a b"}, "partition"),
        ({"partition": "--wrap=x"}, "--wrap=x|partition"),
        ({"time_limit": "soon"}, "'soon' is no time limit"),
        ({"time_limit": "00:00:10"}, "a minute or more"),
        ({"gpu_count": 2}, "say gpu_type"),
        ({"gpu_type": "A100"}, "gpu_count is missing"),
        ({"options": ["--wrap=rm -rf /"]}, "is not allowed; write --name=value"),
        ({"options": ["--uid=0"]}, "'--uid=0' is not allowed"),
        ({"options": ["--export=ALL"]}, "'--export=ALL' is not allowed"),
        ({"options": ["--reservation=a b"]}, "is not allowed"),
        ({"cpus": 0}, "cpus"),
        ({"memory_gb": 0}, "memory_gb"),
        ({"most": 0}, "most"),
        ({"bogus": 1}, "bogus"),
    ],
)
def test_a_mistake_is_named_by_its_field(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], told: str) -> None:
    """Which shape, which field, and what may stand there."""
    with pytest.raises(ValidationError) as raised:
        settings(monkeypatch, CPU, {**CPU, "name": "other", **wrong})
    assert any(word in str(raised.value) for word in told.split("|"))


def test_two_shapes_of_one_name_are_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is the pool's."""
    with pytest.raises(ValidationError, match="two shapes are called 'cpu'"):
        settings(monkeypatch, CPU, CPU)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("30:30", 1830), ("8:00:00", 28_800), ("2-0", 172_800), ("1-12:30", 131_400), ("1-1:0:5", 90_005)],
)  # fmt: skip
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: int) -> None:
    """Minutes where there is one number; days before a dash."""
    assert shape(time_limit=text).time_limit_s == seconds


def test_a_stack_of_one_machine_asks_no_cluster_unasked() -> None:
    """Shapes in a shell are an account like any other: `allpass up --real slurm` names it."""
    given = {"ALLPASS_SLURM_SHAPES": "[]", "ALLPASS_SLURM_CONF": "/x"}
    assert withheld_settings(given, ()) == {"ALLPASS_SLURM_SHAPES"}
    assert withheld_settings(given, ("slurm",)) == set()


def test_what_sbatch_is_told() -> None:
    """All of the shape, never begun again by others, without our environment, and no secret."""
    one = shape(account="lab", qos="long", constraint="a100&nvlink", time_limit="8:00:00", options=("--nice=10",))
    mark = SlurmMark(new_label(), one.name, 5)
    told = order(one, mark, SlurmOptions((one,)), log="/dev/null")
    for wanted in ("--no-requeue", "--export=NONE", "--parsable", "--account=lab", "--qos=long", "--gres=gpu:1",
                   "--constraint=a100&nvlink", "--cpus-per-task=2", "--mem=1024M", "--time=8:00:00", "--nice=10",
                   "--signal=B:TERM@120", f"--job-name={mark.label}", f"--comment={mark.comment}"):  # fmt: skip
        assert wanted in told


def test_a_short_life_is_not_cut_shorter_by_a_notice() -> None:
    """Slurm sends it up to a minute early; of ten minutes and more that is little."""
    one = shape(time_limit="9")
    told = order(one, SlurmMark(new_label(), one.name, 0), SlurmOptions((one,)), log="/dev/null")
    assert not any(word.startswith("--signal") for word in told)


def test_the_script_quotes_what_it_is_given() -> None:
    """A folder with odd characters is refused by the settings; were it not, the shell would see one word."""
    given = request(offer_of(shape(), 0, SlurmOptions(())))
    text = batch_script(given, SlurmOptions((), scratch="/a b;c", setup="module load python"))
    assert "parent='/a b;c'/allpass-" in text
    assert text.startswith("#!/bin/sh\n")
    assert text.count("#!/bin/sh") == 1
    assert "module load python\n" in text
    with pytest.raises(InvalidRequest):
        batch_script(MachineRequest(given.label, given.offer, Money(0), "", ()), SlurmOptions(()))


def test_a_shape_without_gpus_gives_its_processors() -> None:
    """As joined hosts without GPUs do."""
    one = shape("cpu", gpu_type="CPU", gpu_count=0, gpu_memory_gb=0)
    offer: Offer = offer_of(one, 0, SlurmOptions((one,)))
    assert (offer.tier, offer.gpu_type, offer.gpu_count, one.asked_gres) == (Tier.OWN, "CPU", 1, None)
    assert offer.gpu_memory_bytes == offer.memory_bytes
