"""Requests about reservations and repeated windows of jobs that stand by, as `allpass.calls` has the others."""

from __future__ import annotations

from urllib.parse import quote

from allpass.calls import PAGE_LIMIT, Call
from allpass.wire.base import Page
from allpass.wire.reservations import Reservation, ReservationRequest
from allpass.wire.standby import Window, WindowRequest, Windows

_PATH = "/v1/reservations"


def reserve(request: ReservationRequest, *, key: str) -> Call[Reservation]:
    return Call("POST", _PATH, Reservation, body=request, key=key)


def list_reservations(cursor: str | None = None) -> Call[Page[Reservation]]:
    query: dict[str, str | int] = {"limit": PAGE_LIMIT, **({} if cursor is None else {"cursor": cursor})}
    return Call("GET", _PATH, Page[Reservation], query=query)


def get_reservation(reservation_id: str) -> Call[Reservation]:
    return Call("GET", f"{_PATH}/{quote(reservation_id, safe='')}", Reservation)


def end_reservation(reservation_id: str) -> Call[Reservation]:
    return Call("DELETE", f"{_PATH}/{quote(reservation_id, safe='')}", Reservation)


def repeat_standby(job_id: str, request: WindowRequest, *, key: str) -> Call[Window]:
    return Call("POST", f"/v1/jobs/{quote(job_id, safe='')}/standby/windows", Window, body=request, key=key)


def list_standby_windows(job_id: str) -> Call[Windows]:
    return Call("GET", f"/v1/jobs/{quote(job_id, safe='')}/standby/windows", Windows)


def end_standby_window(window_id: str) -> Call[Window]:
    return Call("DELETE", f"/v1/standby-windows/{quote(window_id, safe='')}", Window)
