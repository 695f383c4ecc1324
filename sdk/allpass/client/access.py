"""The clients' methods about the project, its keys, secrets and the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from functools import partial

from pydantic import ValidationError

from allpass import calls, flows
from allpass.changes import KEEP, Keep
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.setup import new_key
from allpass.errors import InvalidInput
from allpass.wire import access as wire
from allpass.wire.budgets import Budget, BudgetRequest, BudgetScope, Period
from allpass.wire.limits import Limits, LimitsUpdate
from allpass.wire.project import (
    CreatedProject,
    DefaultClass,
    Project,
    ProjectChange,
    ProjectRequest,
    ProjectUpdate,
)


class AccessMethods(Blocking):
    """Of `Client`."""

    def project(self) -> Project:
        """The project that the API key belongs to, with what is settled for all of its jobs."""
        return self._call(calls.get_project())

    def update_project(self, *, ahead: bool) -> Project:
        """`ahead`: whether machines are rented ahead, and kept idle, for jobs to come. Needs a key with `admin`."""
        return self._call(calls.update_project(ProjectUpdate(ahead=ahead)))

    def limits(self) -> Limits:
        """What the installation may rent at real providers, and has. Needs a key with scope `owner`."""
        return self._call(calls.get_limits())

    def update_limits(self, *, machines: int | Keep | None = KEEP, per_day_usd: float | Keep | None = KEEP) -> Limits:
        """None takes a limit away; what is not given stays. Needs a key with scope `owner`."""
        return self._call(calls.update_limits(_limits_update(machines, per_day_usd)))

    def budgets(self) -> Iterator[Budget]:
        """The project's budgets, newest first, with what counts against each; for owners, the installation's, too."""
        return self._each(flows.every(self._protocol, calls.list_budgets))

    def set_budget(
        self,
        period: Period,
        amount_usd: float,
        *,
        key_id: str | None = None,
        provider: str | None = None,
        scope: BudgetScope = "project",
    ) -> Budget:
        """The most that is spent in each `period` (`hour`, `day` or `month`, of UTC): in all, by jobs that a key has
        submitted, or at a provider. Replaces an earlier one for the same. Needs a key with `admin`, or `owner` for
        scope `installation`."""
        return self._call(calls.set_budget(_budget_request(period, amount_usd, key_id, provider, scope)))

    def remove_budget(self, budget_id: str) -> Budget:
        """The budget as it was. What it alone has held goes on by itself."""
        return self._call(calls.remove_budget(budget_id))

    def create_project(self, name: str) -> CreatedProject:
        """A new project, with its first API key, which is in this answer only. Needs a key with scope `owner`."""
        return self._call(calls.create_project(ProjectRequest(name=name), key=new_key()))

    def projects(self, *, name: str | None = None) -> Iterator[Project]:
        """The projects of the installation, newest first, or the one of this name. Needs a key with scope `owner`."""
        return self._each(flows.every(self._protocol, partial(calls.list_projects, name=name)))

    def change_project(self, project_id: str, *, default_class: DefaultClass) -> Project:
        """`default_class`: of its jobs that name none, from now on. Needs a key with scope `owner`."""
        return self._call(calls.change_project(project_id, _project_change(default_class)))

    def archive_project(self, project_id: str) -> Project:
        """Its keys open nothing any more. Conflict while one of its jobs is not over. Needs `owner`."""
        return self._call(calls.archive_project(project_id, key=new_key()))

    def restore_project(self, project_id: str) -> Project:
        """An archived project is as it was. Needs `owner`."""
        return self._call(calls.restore_project(project_id, key=new_key()))

    def create_project_key(
        self, project_id: str, name: str, scopes: Sequence[wire.Scope] = ("admin",)
    ) -> wire.CreatedKey:
        """A key of another project, whose audit log tells of it. Needs `owner`."""
        return self._call(calls.create_project_key(project_id, _key_request(name, scopes, None), key=new_key()))

    def create_key(
        self, name: str, scopes: Sequence[wire.Scope] = ("read", "submit"), *, expires_at: datetime | None = None
    ) -> wire.CreatedKey:
        """A new API key; needs one with scope `admin`. Its `key` is in this answer only: keep it."""
        return self._call(calls.create_key(_key_request(name, scopes, expires_at), key=new_key()))

    def keys(self) -> Iterator[wire.Key]:
        """Every key of the project, newest first, revoked ones too."""
        return self._each(flows.every(self._protocol, calls.list_keys))

    def revoke_key(self, key_id: str) -> wire.Key:
        """The key opens nothing any more, at most 5 seconds from now. Conflict for the last key with `admin`."""
        return self._call(calls.revoke_key(key_id))

    def set_secret(self, name: str, value: str) -> wire.Secret:
        """Store a value that jobs may name; it is never told again. Replaces an earlier one."""
        return self._call(calls.set_secret(name, _secret_request(value)))

    def secrets(self) -> Iterator[wire.Secret]:
        """The project's secrets by name, without their values."""
        return self._each(flows.every(self._protocol, calls.list_secrets))

    def delete_secret(self, name: str) -> wire.Secret:
        """Delete it at once. `used_by_jobs` of the answer are jobs that will fail when they start without it."""
        return self._call(calls.delete_secret(name))

    def audit(self) -> Iterator[wire.AuditEntry]:
        """What keys of the project asked to be written, newest first; needs a key with scope `admin`."""
        return self._each(flows.every(self._protocol, calls.list_audit))


class AsyncAccessMethods(Awaited):
    """Of `AsyncClient`: as `AccessMethods`, awaited."""

    async def project(self) -> Project:
        """As `Client.project`."""
        return await self._call(calls.get_project())

    async def update_project(self, *, ahead: bool) -> Project:
        """As `Client.update_project`."""
        return await self._call(calls.update_project(ProjectUpdate(ahead=ahead)))

    async def limits(self) -> Limits:
        """As `Client.limits`."""
        return await self._call(calls.get_limits())

    async def update_limits(
        self, *, machines: int | Keep | None = KEEP, per_day_usd: float | Keep | None = KEEP
    ) -> Limits:
        """As `Client.update_limits`."""
        return await self._call(calls.update_limits(_limits_update(machines, per_day_usd)))

    def budgets(self) -> AsyncIterator[Budget]:
        """As `Client.budgets`."""
        return self._each(flows.every(self._protocol, calls.list_budgets))

    async def set_budget(
        self,
        period: Period,
        amount_usd: float,
        *,
        key_id: str | None = None,
        provider: str | None = None,
        scope: BudgetScope = "project",
    ) -> Budget:
        """As `Client.set_budget`."""
        return await self._call(calls.set_budget(_budget_request(period, amount_usd, key_id, provider, scope)))

    async def remove_budget(self, budget_id: str) -> Budget:
        """As `Client.remove_budget`."""
        return await self._call(calls.remove_budget(budget_id))

    async def create_project(self, name: str) -> CreatedProject:
        """As `Client.create_project`."""
        return await self._call(calls.create_project(ProjectRequest(name=name), key=new_key()))

    def projects(self, *, name: str | None = None) -> AsyncIterator[Project]:
        """As `Client.projects`."""
        return self._each(flows.every(self._protocol, partial(calls.list_projects, name=name)))

    async def change_project(self, project_id: str, *, default_class: DefaultClass) -> Project:
        """As `Client.change_project`."""
        return await self._call(calls.change_project(project_id, _project_change(default_class)))

    async def archive_project(self, project_id: str) -> Project:
        """As `Client.archive_project`."""
        return await self._call(calls.archive_project(project_id, key=new_key()))

    async def restore_project(self, project_id: str) -> Project:
        """As `Client.restore_project`."""
        return await self._call(calls.restore_project(project_id, key=new_key()))

    async def create_project_key(
        self, project_id: str, name: str, scopes: Sequence[wire.Scope] = ("admin",)
    ) -> wire.CreatedKey:
        """A key of another project, whose audit log tells of it. Needs `owner`."""
        return await self._call(calls.create_project_key(project_id, _key_request(name, scopes, None), key=new_key()))

    async def create_key(
        self, name: str, scopes: Sequence[wire.Scope] = ("read", "submit"), *, expires_at: datetime | None = None
    ) -> wire.CreatedKey:
        """As `Client.create_key`."""
        return await self._call(calls.create_key(_key_request(name, scopes, expires_at), key=new_key()))

    def keys(self) -> AsyncIterator[wire.Key]:
        return self._each(flows.every(self._protocol, calls.list_keys))

    async def revoke_key(self, key_id: str) -> wire.Key:
        """As `Client.revoke_key`."""
        return await self._call(calls.revoke_key(key_id))

    async def set_secret(self, name: str, value: str) -> wire.Secret:
        """As `Client.set_secret`."""
        return await self._call(calls.set_secret(name, _secret_request(value)))

    def secrets(self) -> AsyncIterator[wire.Secret]:
        return self._each(flows.every(self._protocol, calls.list_secrets))

    async def delete_secret(self, name: str) -> wire.Secret:
        """As `Client.delete_secret`."""
        return await self._call(calls.delete_secret(name))

    def audit(self) -> AsyncIterator[wire.AuditEntry]:
        return self._each(flows.every(self._protocol, calls.list_audit))


def _key_request(name: str, scopes: Sequence[wire.Scope], expires_at: datetime | None) -> wire.KeyRequest:
    fields = {"name": name, "scopes": list(scopes)} | ({"expires_at": expires_at} if expires_at is not None else {})
    try:
        return wire.KeyRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        hint = 'create_key("ci", ["read", "submit"])'
        raise InvalidInput(f"{where}: {first['input']!r} is refused: {first['msg']}", hint=hint) from None


def _limits_update(machines: int | Keep | None, per_day_usd: float | Keep | None) -> LimitsUpdate:
    given = {"machines": machines, "per_day_usd": per_day_usd}
    try:
        return LimitsUpdate.model_validate({name: value for name, value in given.items() if value is not KEEP})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        told = f"{first['loc'][0]}: {first['input']!r} is refused: {first['msg']}"
        raise InvalidInput(told, hint="update_limits(machines=10, per_day_usd=200.0)") from None


def _budget_request(
    period: Period, amount_usd: float, key_id: str | None, provider: str | None, scope: BudgetScope
) -> BudgetRequest:
    given = {"period": period, "amount_usd": amount_usd, "key_id": key_id, "provider": provider, "scope": scope}
    try:
        return BudgetRequest.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        told = f"{first['loc'][0]}: {first['input']!r} is refused: {first['msg']}"
        raise InvalidInput(told, hint='set_budget("day", 20.0)') from None


def _secret_request(value: str) -> wire.SecretRequest:
    """Checked without ever telling the value."""
    if not isinstance(value, str):
        raise InvalidInput(f"the value of a secret is text, not {type(value).__name__}")
    return wire.SecretRequest(value=value)


def _project_change(default_class: str) -> ProjectChange:
    try:
        return ProjectChange.model_validate({"default_class": default_class})
    except ValidationError:
        raise InvalidInput(
            f"default_class: {default_class!r:.80} is no class of jobs: guaranteed or spot",
            hint='change_project(project_id, default_class="spot")',
        ) from None
