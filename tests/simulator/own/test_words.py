"""`--pool`: what a word means, and what is said of a wrong one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.money import Money
from app.errors import InvalidInput
from app.simulator.options import Options
from app.simulator.own.words import read_pools


def test_hosts_gpus_and_a_price() -> None:
    own = read_pools("8xA100+lab:2x4xRTX 4090@0.40")
    assert own is not None
    first, lab = (one.pool for one in own.pools)
    assert (first.name, first.price, lab.name, lab.price) == ("pool-1", Money(0), "lab", Money.usd("0.40"))
    assert [(host.host_id, host.pool, len(host.gpus)) for host in own.hosts] == [
        ("pool-1-001", "pool-1", 8),
        ("lab-001", "lab", 4),
        ("lab-002", "lab", 4),
    ]
    assert {gpu.memory_bytes // 2**30 for gpu in own.hosts[1].gpus} == {24}
    assert [(event.at_ms, event.what) for event in own.events] == [(0, "join")] * 3


def test_without_a_word_there_are_none() -> None:
    assert read_pools("none") is None
    assert not Options().has_own
    assert "pool" not in Options().told()
    assert Options().having("pool", "8xA100").having("pool", "none") == Options()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no pool; write [NAME:][HOSTSx]GPUSxTYPE[@USD], for instance 8xA100"),
        ("8", "'8' is no pool"),
        ("-1xA100", "'-1xA100' is no pool"),
        ("8xA100@-1", "'8xA100@-1' is no pool"),
        ("8xA100@nan", "'8xA100@nan' is no pool"),
        ("8xA100+", "'' is no pool"),
        ("8xBanana", "has GPUs 'Banana', which nobody knows; name for instance A100"),
        ("8xGH200", "whose hosts are Arm"),
        ("0xA100", "has 0 GPUs in a host; give 1 to 64"),
        ("65xA100", "has 65 GPUs in a host; give 1 to 64"),
        ("0x8xA100", "has 0 hosts; give 1 to 256"),
        ("257x8xA100", "has 257 hosts; give 1 to 256"),
        ("Lab:8xA100", "names the pool 'Lab'; take lower-case letters"),
        (":8xA100", "names the pool ''; take lower-case letters"),
        ("8xA100@1001", "costs $1001 a GPU-hour; give 1000 at most"),
        ("lab:8xA100+lab:8xH100", "is a second pool lab; give each another name"),
        ("+".join(["1xA100"] * 17), "names 17 pools; name 16 at most"),
    ],
)
def test_nonsense_is_refused_with_what_would_do(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Options().having("pool", text)
    assert caught.value.message.startswith("--pool: ")
    assert said in caught.value.message
    assert caught.value.param == "pool"


@given(st.text(alphabet="0123456789xAH@.:+- $lab", max_size=30))
def test_whatever_is_typed_is_pools_or_refused(text: str) -> None:
    try:
        own = read_pools(text)
    except InvalidInput as error:
        assert len(error.message) < 400
    else:
        assert own is not None
        assert len({host.host_id for host in own.hosts}) == len(own.hosts) <= 16 * 256
