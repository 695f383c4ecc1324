"""The clients' methods about GPUs of pools that are kept for a while, and hours in which jobs lend theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from allpass import flows, reservation_calls
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.setup import new_key
from allpass.errors import InvalidInput
from allpass.wire.reservations import Reservation, ReservationRequest
from allpass.wire.standby import Window, WindowRequest

_Asked = TypeVar("_Asked", bound=BaseModel)
_HOW = (
    'reserve("lab", "A100", 8, ends_at=...) with aware times; repeat_standby(job_id, ["mon"], "20:00", "08:00", "UTC")'
)


class LendingMethods(Blocking):
    """Of `Client`."""

    def reserve(
        self, pool: str, gpu_type: str, gpus: int, *, ends_at: datetime, begins_at: datetime | None = None
    ) -> Reservation:
        """Keep GPUs of a pool for the project in a window, from now on unless `begins_at` is given. Both are aware.
        Conflict with the code `not_reservable` where the pool does not have them, or has promised them to others."""
        request = _reservation(pool, gpu_type, gpus, begins_at, ends_at)
        return self._call(reservation_calls.reserve(request, key=new_key()))

    def reservations(self) -> Iterator[Reservation]:
        """All of the project, newest first."""
        return self._each(flows.every(self._protocol, reservation_calls.list_reservations))

    def reservation(self, reservation_id: str) -> Reservation:
        """NotFound if there is none."""
        return self._call(reservation_calls.get_reservation(reservation_id))

    def end_reservation(self, reservation_id: str) -> Reservation:
        """Give it up; nobody has to leave."""
        return self._call(reservation_calls.end_reservation(reservation_id))

    def repeat_standby(
        self, job_id: str, days: Sequence[str], begins: str, ends: str, zone: str, *, lose_steps: bool = False
    ) -> Window:
        """Have the job stand by in these hours ("20:00" to "08:00") of the zone's clock on these days ("mon"), again
        and again while it runs."""
        asked = {"days": list(days), "begins": begins, "ends": ends, "zone": zone, "lose_steps": lose_steps}
        return self._call(reservation_calls.repeat_standby(job_id, _read(WindowRequest, asked), key=new_key()))

    def list_standby_windows(self, job_id: str) -> list[Window]:
        """The job's repeated windows, newest first."""
        return self._call(reservation_calls.list_standby_windows(job_id)).items

    def end_standby_window(self, window_id: str) -> Window:
        """It does not repeat any more. A standby that it has begun goes on to its end."""
        return self._call(reservation_calls.end_standby_window(window_id))


class AsyncLendingMethods(Awaited):
    """As `LendingMethods`, of `AsyncClient`."""

    async def reserve(
        self, pool: str, gpu_type: str, gpus: int, *, ends_at: datetime, begins_at: datetime | None = None
    ) -> Reservation:
        """As `Client.reserve`."""
        request = _reservation(pool, gpu_type, gpus, begins_at, ends_at)
        return await self._call(reservation_calls.reserve(request, key=new_key()))

    def reservations(self) -> AsyncIterator[Reservation]:
        """As `Client.reservations`."""
        return self._each(flows.every(self._protocol, reservation_calls.list_reservations))

    async def reservation(self, reservation_id: str) -> Reservation:
        """As `Client.reservation`."""
        return await self._call(reservation_calls.get_reservation(reservation_id))

    async def end_reservation(self, reservation_id: str) -> Reservation:
        """As `Client.end_reservation`."""
        return await self._call(reservation_calls.end_reservation(reservation_id))

    async def repeat_standby(
        self, job_id: str, days: Sequence[str], begins: str, ends: str, zone: str, *, lose_steps: bool = False
    ) -> Window:
        """As `Client.repeat_standby`."""
        asked = {"days": list(days), "begins": begins, "ends": ends, "zone": zone, "lose_steps": lose_steps}
        return await self._call(reservation_calls.repeat_standby(job_id, _read(WindowRequest, asked), key=new_key()))

    async def list_standby_windows(self, job_id: str) -> list[Window]:
        """As `Client.list_standby_windows`."""
        return (await self._call(reservation_calls.list_standby_windows(job_id))).items

    async def end_standby_window(self, window_id: str) -> Window:
        """As `Client.end_standby_window`."""
        return await self._call(reservation_calls.end_standby_window(window_id))


def _reservation(
    pool: str, gpu_type: str, gpus: int, begins_at: datetime | None, ends_at: datetime
) -> ReservationRequest:
    asked = {"pool": pool, "gpu_type": gpu_type, "gpus": gpus, "begins_at": begins_at, "ends_at": ends_at}
    return _read(ReservationRequest, asked)


def _read(model: type[_Asked], asked: dict[str, Any]) -> _Asked:
    """Raises InvalidInput that names the first field which is none."""
    try:
        return model.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "request"
        raise InvalidInput(f"{where}: {first['input']!r:.80} is refused: {first['msg']}", hint=_HOW) from None
