"""A host whose disk fills up asks the machine that takes most to save and go: one, and the next when that is gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.folders import open_to_all
from workers.agent.errors import Forgotten
from workers.host import daemon
from workers.host.daemon import Daemon
from workers.host.machines import KeptMachine
from workers.host.place import HostPlace, Member


class Machines:
    """Those of a host, as its daemon sees them; which were told to end."""

    def __init__(self) -> None:
        self.live = [KeptMachine("mach_A", [0]), KeptMachine("mach_B", [1])]
        self.told: list[str] = []

    def largest(self) -> str | None:
        return self.live[0].machine_id if self.live else None

    def tell_end(self, machine_id: str) -> None:
        self.told.append(machine_id)


@pytest.fixture
def place() -> Iterator[HostPlace]:
    with open_to_all() as folder:
        yield HostPlace(folder)


def test_one_after_the_other_until_there_is_room(place: HostPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [100]
    monkeypatch.setattr(daemon, "free_bytes", lambda _root: free[0])
    working = Daemon(place, Member("http://127.0.0.1:1", "host_1", "token", "lab", "cpus", keep_free_bytes=200))
    machines = Machines()
    monkeypatch.setattr(working, "_machines", machines)
    working._guard_disk()
    assert machines.told == [], "half of it is left"
    free[0] = 99
    for _ in range(3):
        working._guard_disk()
    assert machines.told == ["mach_A"], "told once"
    machines.live.pop(0)
    working._guard_disk()
    assert machines.told == ["mach_A", "mach_B"]
    free[0] = 500
    machines.live.pop(0)
    working._guard_disk()
    free[0] = 1
    working._guard_disk()
    assert machines.told == ["mach_A", "mach_B"], "nothing is left to end"


@pytest.mark.parametrize(("code", "counts"), [("unauthenticated", True), ("", False), ("forbidden", False)])
def test_only_the_service_itself_ends_a_membership(place: HostPlace, code: str, counts: bool) -> None:
    """A proxy that answers 403 for it ends nothing that runs."""
    working = Daemon(place, Member("http://127.0.0.1:1", "host_1", "token", "lab", "cpus"))

    def refused(*_: object, **__: object) -> None:
        raise Forgotten(403, code, "no")

    working._api.sync = refused  # type: ignore[assignment,method-assign]  # what the network says
    assert (working._tell() is not None) == counts
