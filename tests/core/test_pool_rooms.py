"""What would fit on hosts of pools now, and what blocks the rest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.core.fragmentation import StrandedRoom
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.pool_rooms import FragmentedPools, fragmented_pools

GIB = 1024**3
LAB = Pool("lab")


def host(
    name: str, taken: int = 0, *, gpus: int = 8, cpus: int = 128, pool: str = "lab", kind: str = "A100"
) -> OwnHost:
    every = tuple(HostGpu(index, kind, 80 * GIB) for index in range(gpus))
    return OwnHost(name, pool, cpus, 512 * GIB, every, tuple(range(taken)))


def fits(found: FragmentedPools, gpus: int, cpus: int) -> StrandedRoom:
    return next(one.room for one in found.requests if (one.gpus, one.cpus) == (gpus, cpus))


def test_three_half_used_hosts_have_room_for_small_jobs_and_for_no_whole_one() -> None:
    found = fragmented_pools([LAB], [host(name, 4) for name in "abc"], {}, 0)
    assert (found.hosts, found.whole, found.gpus, found.free_gpus) == (3, 0, 24, 12)
    assert fits(found, 1, 8) == StrandedRoom(12, 0, 0)
    assert fits(found, 8, 128) == StrandedRoom(0, for_gpus=12, for_cpus=0)


def test_processors_are_cut_with_gpus() -> None:
    """Eight for each GPU: two such requests of sixteen for two, and none of 128 for a whole host."""
    found = fragmented_pools([LAB], [host("a", cpus=64)], {}, 0)
    assert fits(found, 8, 64) == StrandedRoom(1, 0, 0)
    assert fits(found, 8, 128) == StrandedRoom(0, 0, for_cpus=8)
    assert fits(found, 4, 64) == StrandedRoom(1, 0, for_cpus=4)


def test_a_gang_is_within_one_switch_and_of_one_kind() -> None:
    hosts = [host(f"h{number}") for number in range(16)]
    (gang, _) = fragmented_pools([LAB], hosts, {}, 0).gangs
    assert (gang.gpus, gang.room) == (128, StrandedRoom(1, 0, 0))
    apart = {one.host_id: "left" if number < 8 else "right" for number, one in enumerate(hosts)}
    found = fragmented_pools([LAB], hosts, apart, 0)
    assert (found.switches, found.gangs[0].room) == (2, StrandedRoom(0, 0, 0, for_switch=128))
    mixed = [*hosts[:8], *(host(f"x{number}", kind="H100") for number in range(8))]
    assert fragmented_pools([LAB], mixed, {}, 0).gangs[0].room.fitting == 0


def test_hosts_of_two_pools_are_in_no_gang_together_though_they_are_under_one_switch() -> None:
    other = replace(LAB, name="other")
    hosts = [host(f"h{number}", pool="lab" if number < 8 else "other") for number in range(16)]
    found = fragmented_pools([LAB, other], hosts, {one.host_id: "leaf-1" for one in hosts}, 0)
    assert (found.switches, found.gangs[0].room) == (1, StrandedRoom(0, 0, 0, for_switch=128))


def test_what_one_rack_holds_is_counted_beside_what_one_switch_does() -> None:
    """Nothing is said of racks where nobody says any; hosts that say none are of one of their own."""
    hosts = [host(f"h{number:02}") for number in range(16)]
    switches = {one.host_id: f"s{number % 4}" for number, one in enumerate(hosts)}
    assert fragmented_pools([LAB], hosts, switches, 0).gangs[0].in_rack is None
    racks = {one.host_id: "r1" for one in hosts}
    found = fragmented_pools([LAB], hosts, switches, 0, racks)
    assert (found.racks, found.gangs[0].in_rack) == (1, StrandedRoom(1, 0, 0))
    del racks["h00"]
    found = fragmented_pools([LAB], hosts, switches, 0, racks)
    assert (found.racks, found.gangs[0].in_rack) == (2, StrandedRoom(0, 0, 0, for_switch=128))


def test_what_takes_nothing_now_is_not_counted() -> None:
    drains, silent = replace(LAB, name="old", drains_ms=1), replace(host("c"), is_open=False)
    found = fragmented_pools([LAB, drains], [host("a"), host("b", pool="old"), silent], {}, 0)
    assert (found.hosts, found.gpus) == (1, 8)
    assert fragmented_pools([], [host("a")], {}, 0).hosts == 0


def test_no_more_of_a_pool_than_its_owner_lets_be_used() -> None:
    limited = replace(LAB, most_gpus=6)
    assert fragmented_pools([limited], [host("a", 2), host("b")], {}, 0).free_gpus == 4
    assert fragmented_pools([replace(LAB, most_gpus=1)], [host("a", 2)], {}, 0).free_gpus == 0


_hosts = st.lists(st.builds(host, st.uuids().map(str), st.integers(0, 8), cpus=st.integers(1, 200)), max_size=6)


@given(_hosts)
def test_every_free_gpu_is_in_a_request_or_blocked_for_one_reason(hosts: list[OwnHost]) -> None:
    found = fragmented_pools([LAB], hosts, {}, 0)
    for one in found.requests:
        blocked = one.room.for_gpus + one.room.for_cpus
        assert one.room.fitting * one.gpus + blocked == found.free_gpus
    for gang in found.gangs:
        room = gang.room
        assert room.fitting * gang.gpus + room.for_gpus + room.for_cpus + room.for_switch == found.free_gpus
