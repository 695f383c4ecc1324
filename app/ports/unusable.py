"""A provider that is installed and cannot be used: it says so to whoever asks, and nothing is concluded from it."""

from __future__ import annotations

from typing import NoReturn

from app.core.model.node import ProviderTraits
from app.core.model.offer import Offer
from app.errors import Transient
from app.ports.provider import Machine, MachineRequest


class UnusableProvider:
    """Implements `Provider`: rents nothing, and answers every call with its problem.

    In place of none at all: machines that it may have are neither forgotten nor taken for ended, and `allpass
    providers` shows what is wrong.
    """

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self._problem = problem

    def traits(self) -> tuple[ProviderTraits, ...]:
        return ()

    async def offers(self) -> list[Offer]:
        self._refuse()

    async def create(self, request: MachineRequest) -> Machine:
        self._refuse()

    async def get(self, ref: str) -> Machine | None:
        self._refuse()

    async def find(self, label: str) -> list[Machine]:
        self._refuse()

    async def list_owned(self) -> list[Machine]:
        self._refuse()

    async def terminate(self, ref: str) -> None:
        self._refuse()

    async def logs(self, ref: str, tail_lines: int) -> str:
        self._refuse()

    async def close(self) -> None:
        return

    def _refuse(self) -> NoReturn:
        raise Transient(f"provider {self.name} cannot be used: {self._problem}")
