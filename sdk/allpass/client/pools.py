"""The clients' methods about pools of one's own machines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from allpass import flows, pool_calls
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.setup import new_key
from allpass.errors import InvalidInput
from allpass.wire.pools import (
    DrainRequest,
    HostChange,
    Pool,
    PoolChange,
    PoolHost,
    PoolRequest,
    PoolToken,
    PoolTokenRequest,
    UndrainRequest,
)

_Asked = TypeVar("_Asked", bound=BaseModel)
_SETTINGS = 'create_pool("lab", price_usd=0.4, hours="mon-fri 20:00-08:00")'
_LABELS = 'label_host("lab", "gpu-box-1", {"switch": "leaf-3"})'


class PoolMethods(Blocking):
    """Of `Client`. Writes need a key with scope `owner`."""

    def pools(self) -> Iterator[Pool]:
        """All pools with their hosts, by name."""
        return self._each(flows.every(self._protocol, pool_calls.list_pools))

    def pool(self, name: str) -> Pool:
        """NotFound if there is none of this name."""
        return self._call(pool_calls.get_pool(name))

    def create_pool(self, name: str, **settings: Any) -> Pool:
        """A new pool. `settings`: launcher, price_usd (per GPU and hour), spot_share (what spot jobs pay of that),
        rebate (of a job that stands by), grace_s (to leave in), preference, projects, hours, most_gpus, quotas,
        host_quotas, labels."""
        return self._call(pool_calls.create_pool(_read(PoolRequest, {"name": name, **settings}), key=new_key()))

    def change_pool(self, name: str, **settings: Any) -> Pool:
        """Change what is named: as `create_pool`, less the launcher."""
        return self._call(pool_calls.change_pool(name, _read(PoolChange, settings)))

    def remove_pool(self, name: str) -> Pool:
        """Conflict while hosts are in it."""
        return self._call(pool_calls.remove_pool(name))

    def create_pool_token(self, name: str, *, joins: int = 1, valid_s: int = 3600) -> PoolToken:
        """What so many hosts can join the pool with. Its `token` is in this answer only."""
        request = _read(PoolTokenRequest, {"joins": joins, "valid_s": valid_s})
        return self._call(pool_calls.create_pool_token(name, request, key=new_key()))

    def drain_pool(self, name: str, *, host: str | None = None, within_s: int = 1200) -> Pool:
        """Have what runs there move away, and nothing new start: in the pool, or on one of its hosts."""
        request = _read(DrainRequest, {"host": host, "within_s": within_s})
        return self._call(pool_calls.drain_pool(name, request, key=new_key()))

    def undrain_pool(self, name: str, *, host: str | None = None) -> Pool:
        """Use it again."""
        return self._call(pool_calls.undrain_pool(name, _read(UndrainRequest, {"host": host}), key=new_key()))

    def forget_host(self, name: str, host: str) -> PoolHost:
        """A host that does not answer any more is in no pool. Conflict for one that does."""
        return self._call(pool_calls.forget_host(name, host))

    def label_host(self, name: str, host: str, labels: Mapping[str, str | None]) -> PoolHost:
        """Set labels of a host, by its name or id, or take them away with None; the rest stays. `switch` is which
        network switch it is under: the machines of a job on several are taken from as few as can be."""
        return self._call(pool_calls.change_host(name, host, _read(HostChange, {"labels": dict(labels)}, _LABELS)))


class AsyncPoolMethods(Awaited):
    """Of `AsyncClient`: as `PoolMethods`, awaited."""

    def pools(self) -> AsyncIterator[Pool]:
        """As `Client.pools`."""
        return self._each(flows.every(self._protocol, pool_calls.list_pools))

    async def pool(self, name: str) -> Pool:
        """As `Client.pool`."""
        return await self._call(pool_calls.get_pool(name))

    async def create_pool(self, name: str, **settings: Any) -> Pool:
        """As `Client.create_pool`."""
        return await self._call(pool_calls.create_pool(_read(PoolRequest, {"name": name, **settings}), key=new_key()))

    async def change_pool(self, name: str, **settings: Any) -> Pool:
        """As `Client.change_pool`."""
        return await self._call(pool_calls.change_pool(name, _read(PoolChange, settings)))

    async def remove_pool(self, name: str) -> Pool:
        """As `Client.remove_pool`."""
        return await self._call(pool_calls.remove_pool(name))

    async def create_pool_token(self, name: str, *, joins: int = 1, valid_s: int = 3600) -> PoolToken:
        """As `Client.create_pool_token`."""
        request = _read(PoolTokenRequest, {"joins": joins, "valid_s": valid_s})
        return await self._call(pool_calls.create_pool_token(name, request, key=new_key()))

    async def drain_pool(self, name: str, *, host: str | None = None, within_s: int = 1200) -> Pool:
        """As `Client.drain_pool`."""
        request = _read(DrainRequest, {"host": host, "within_s": within_s})
        return await self._call(pool_calls.drain_pool(name, request, key=new_key()))

    async def undrain_pool(self, name: str, *, host: str | None = None) -> Pool:
        """As `Client.undrain_pool`."""
        request = _read(UndrainRequest, {"host": host})
        return await self._call(pool_calls.undrain_pool(name, request, key=new_key()))

    async def forget_host(self, name: str, host: str) -> PoolHost:
        """As `Client.forget_host`."""
        return await self._call(pool_calls.forget_host(name, host))

    async def label_host(self, name: str, host: str, labels: Mapping[str, str | None]) -> PoolHost:
        """As `Client.label_host`."""
        request = _read(HostChange, {"labels": dict(labels)}, _LABELS)
        return await self._call(pool_calls.change_host(name, host, request))


def _read(kind: type[_Asked], given: dict[str, Any], hint: str = _SETTINGS) -> _Asked:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "pool"
        raise InvalidInput(f"{where}: {first['input']!r:.80} is refused: {first['msg']}", hint=hint) from None
