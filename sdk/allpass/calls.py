"""Every request to the API, once, as a value: method, path, body and the model of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from allpass.errors import InvalidInput
from allpass.wire import (
    access,
    apps,
    budgets,
    calibrations,
    controls,
    jobs,
    limits,
    model_names,
    plan,
    pressure,
    price_lists,
    project,
    providers,
    standby,
    ticks,
    usage,
)
from allpass.wire.base import Page, Request

Reply = TypeVar("Reply", bound=BaseModel)
PAGE_LIMIT = 100


@dataclass(frozen=True)
class Call(Generic[Reply]):
    """One request. `wait_s`: how long the server may hold it open, on top of the usual timeout.

    `answers`: error statuses whose body is the reply all the same, and which are not retried.
    A call with a key is a write; the key is sent as `Idempotency-Key` and stays the same in every retry.
    """

    method: str
    path: str
    reply: type[Reply]
    query: Mapping[str, str | int] = field(default_factory=dict)
    body: Request | None = None
    key: str | None = None
    wait_s: float = 0.0
    answers: frozenset[int] = frozenset()


def put_bundle(request: apps.BundleUploadRequest, *, key: str) -> Call[apps.BundleUpload]:
    return Call("POST", "/v1/bundles", apps.BundleUpload, body=request, key=key)


def register_app(request: apps.AppRequest, *, key: str) -> Call[apps.App]:
    return Call("POST", "/v1/apps", apps.App, body=request, key=key)


def list_apps(cursor: str | None = None) -> Call[Page[apps.App]]:
    return Call("GET", "/v1/apps", Page[apps.App], query=_query(limit=PAGE_LIMIT, cursor=cursor))


def get_app(app_id: str) -> Call[apps.App]:
    return Call("GET", f"/v1/apps/{_id(app_id, 'app')}", apps.App)


def submit_job(request: jobs.JobRequest, *, key: str) -> Call[jobs.Job]:
    return Call("POST", "/v1/jobs", jobs.Job, body=request, key=key)


def plan_job(request: plan.PlanRequest, *, key: str) -> Call[plan.Plan]:
    return Call("POST", "/v1/jobs/plan", plan.Plan, body=request, key=key)


def get_project() -> Call[project.Project]:
    return Call("GET", "/v1/project", project.Project)


def create_project(request: project.ProjectRequest, *, key: str) -> Call[project.CreatedProject]:
    return Call("POST", "/v1/projects", project.CreatedProject, body=request, key=key)


def list_projects(cursor: str | None = None, *, name: str | None = None) -> Call[Page[project.Project]]:
    return Call("GET", "/v1/projects", Page[project.Project], query=_query(limit=PAGE_LIMIT, cursor=cursor, name=name))


def change_project(project_id: str, change: project.ProjectChange) -> Call[project.Project]:
    return Call("PATCH", f"/v1/projects/{_id(project_id, 'project')}", project.Project, body=change)


def archive_project(project_id: str, *, key: str) -> Call[project.Project]:
    return Call("POST", f"/v1/projects/{_id(project_id, 'project')}/archive", project.Project, key=key)


def restore_project(project_id: str, *, key: str) -> Call[project.Project]:
    return Call("POST", f"/v1/projects/{_id(project_id, 'project')}/restore", project.Project, key=key)


def create_project_key(project_id: str, request: access.KeyRequest, *, key: str) -> Call[access.CreatedKey]:
    return Call("POST", f"/v1/projects/{_id(project_id, 'project')}/keys", access.CreatedKey, body=request, key=key)


def get_limits() -> Call[limits.Limits]:
    return Call("GET", "/v1/limits", limits.Limits)


def update_limits(change: limits.LimitsUpdate) -> Call[limits.Limits]:
    return Call("PATCH", "/v1/limits", limits.Limits, body=change)


def list_budgets(cursor: str | None = None) -> Call[Page[budgets.Budget]]:
    return Call("GET", "/v1/budgets", Page[budgets.Budget], query=_query(limit=PAGE_LIMIT, cursor=cursor))


def set_budget(request: budgets.BudgetRequest) -> Call[budgets.Budget]:
    return Call("PUT", "/v1/budgets", budgets.Budget, body=request)


def remove_budget(budget_id: str) -> Call[budgets.Budget]:
    return Call("DELETE", f"/v1/budgets/{_id(budget_id, 'budget')}", budgets.Budget)


def list_model_names(cursor: str | None = None) -> Call[Page[model_names.ModelName]]:
    query = _query(limit=PAGE_LIMIT, cursor=cursor)
    return Call("GET", "/v1/model-names", Page[model_names.ModelName], query=query)


def set_model_name(name: str, request: model_names.ModelNameRequest) -> Call[model_names.ModelName]:
    return Call("PUT", _model_name(name), model_names.ModelName, body=request)


def reset_model_name(name: str) -> Call[model_names.ModelName]:
    return Call("DELETE", _model_name(name), model_names.ModelName)


def update_project(change: project.ProjectUpdate) -> Call[project.Project]:
    return Call("PATCH", "/v1/project", project.Project, body=change)


def list_calibrations(cursor: str | None = None) -> Call[Page[calibrations.Calibration]]:
    query = _query(limit=PAGE_LIMIT, cursor=cursor)
    return Call("GET", "/v1/calibrations", Page[calibrations.Calibration], query=query)


def get_calibration(calibration_id: str) -> Call[calibrations.Calibration]:
    path = f"/v1/calibrations/{_id(calibration_id, 'calibration')}"
    return Call("GET", path, calibrations.Calibration)


def update_calibration(calibration_id: str, change: calibrations.CalibrationUpdate) -> Call[calibrations.Calibration]:
    path = f"/v1/calibrations/{_id(calibration_id, 'calibration')}"
    return Call("PATCH", path, calibrations.Calibration, body=change)


def delete_calibration(calibration_id: str) -> Call[calibrations.Calibration]:
    path = f"/v1/calibrations/{_id(calibration_id, 'calibration')}"
    return Call("DELETE", path, calibrations.Calibration)


def submit_sweep(request: jobs.SweepRequest, *, key: str) -> Call[jobs.Sweep]:
    return Call("POST", "/v1/sweeps", jobs.Sweep, body=request, key=key)


def get_sweep(sweep_id: str) -> Call[jobs.Sweep]:
    return Call("GET", f"/v1/sweeps/{_id(sweep_id, 'sweep')}", jobs.Sweep)


def list_jobs(
    cursor: str | None = None,
    *,
    status: str | None = None,
    app: str | None = None,
    label: str | None = None,
    name: str | None = None,
    submitted_after: datetime | None = None,
    submitted_before: datetime | None = None,
    limit: int = PAGE_LIMIT,
) -> Call[Page[jobs.Job]]:
    wanted = _label(label) if label is not None else None
    query = _query(limit=limit, cursor=cursor, status=status, app=app, label=wanted, name=name)
    query |= _query(
        submitted_after=_moment(submitted_after, "submitted_after"),
        submitted_before=_moment(submitted_before, "submitted_before"),
    )
    return Call("GET", "/v1/jobs", Page[jobs.Job], query=query)


def get_job(job_id: str) -> Call[jobs.Job]:
    return Call("GET", _job(job_id), jobs.Job)


def cancel_job(job_id: str, *, key: str) -> Call[jobs.Job]:
    return Call("POST", _job(job_id, "cancel"), jobs.Job, key=key)


def pause_job(job_id: str, *, lose_steps: bool = False, key: str) -> Call[jobs.Job]:
    body = controls.PauseRequest(lose_steps=True) if lose_steps else None  # older servers take no body
    return Call("POST", _job(job_id, "pause"), jobs.Job, body=body, key=key)


def resume_job(job_id: str, *, key: str) -> Call[jobs.Job]:
    return Call("POST", _job(job_id, "resume"), jobs.Job, key=key)


def resize_job(job_id: str, gpus: int | None, nodes: int | None, *, key: str) -> Call[jobs.Job]:
    given = {"gpus": gpus} if nodes is None else {"nodes": nodes} if gpus is None else {"gpus": gpus, "nodes": nodes}
    body = controls.ResizeRequest(**given)  # what is not given is not sent: older servers do not know all of it
    return Call("POST", _job(job_id, "resize"), jobs.Job, body=body, key=key)


def begin_standby(job_id: str, until: str, *, lose_steps: bool = False, key: str) -> Call[standby.Standby]:
    body = standby.StandbyRequest(until=until, lose_steps=lose_steps)
    return Call("POST", _job(job_id, "standby"), standby.Standby, body=body, key=key)


def end_standby(job_id: str, *, key: str) -> Call[standby.Standby]:
    return Call("POST", _job(job_id, "standby", "end"), standby.Standby, key=key)


def list_standbys(job_id: str) -> Call[standby.Standbys]:
    return Call("GET", _job(job_id, "standbys"), standby.Standbys)


def update_job(job_id: str, change: controls.JobUpdate) -> Call[jobs.Job]:
    return Call("PATCH", _job(job_id), jobs.Job, body=change)


def explain_job(job_id: str) -> Call[controls.Explanation]:
    return Call("GET", _job(job_id, "explain"), controls.Explanation)


def get_events(job_id: str, *, after: int, wait_s: int = 0) -> Call[Page[jobs.JobEvent]]:
    query = _query(after=after, limit=PAGE_LIMIT, wait_s=wait_s or None)
    return Call("GET", _job(job_id, "events"), Page[jobs.JobEvent], query=query, wait_s=wait_s)


def events_stream_path(job_id: str) -> str:
    """Of the one answer that is no model: server-sent events, each with a JobEvent."""
    return _job(job_id, "events", "stream")


def get_log(job_id: str, *, position: str, wait_s: int = 0) -> Call[jobs.LogPage]:
    query = _query(position=position or None, wait_s=wait_s or None)
    return Call("GET", _job(job_id, "logs"), jobs.LogPage, query=query, wait_s=wait_s)


def get_metrics(job_id: str, *, after: int | None) -> Call[Page[jobs.MetricPoint]]:
    query = _query(after=after, limit=PAGE_LIMIT)
    return Call("GET", _job(job_id, "metrics"), Page[jobs.MetricPoint], query=query)


def list_checkpoints(job_id: str, cursor: str | None = None) -> Call[Page[jobs.Checkpoint]]:
    return Call("GET", _job(job_id, "checkpoints"), Page[jobs.Checkpoint], query=_query(cursor=cursor))


def list_sizes(job_id: str, cursor: str | None = None) -> Call[Page[jobs.JobSize]]:
    return Call("GET", _job(job_id, "sizes"), Page[jobs.JobSize], query=_query(limit=1000, cursor=cursor))


def list_checkpoint_files(job_id: str, checkpoint_id: str, cursor: str | None = None) -> Call[Page[jobs.FileLink]]:
    path = _job(job_id, "checkpoints", _id(checkpoint_id, "checkpoint"), "files")
    return Call("GET", path, Page[jobs.FileLink], query=_query(cursor=cursor))


def list_artifacts(job_id: str, cursor: str | None = None) -> Call[Page[jobs.FileLink]]:
    return Call("GET", _job(job_id, "artifacts"), Page[jobs.FileLink], query=_query(cursor=cursor))


def get_timeline(job_id: str) -> Call[jobs.Timeline]:
    return Call("GET", _job(job_id, "timeline"), jobs.Timeline)


def list_nodes(cursor: str | None = None, *, include_gone: bool) -> Call[Page[jobs.Node]]:
    query = _query(cursor=cursor, all="true" if include_gone else None)
    return Call("GET", "/v1/nodes", Page[jobs.Node], query=query)


def get_pressure(limit: int) -> Call[pressure.Pressure]:
    return Call("GET", "/v1/pressure", pressure.Pressure, query=_query(limit=limit))


def list_ticks(
    cursor: str | None = None, *, limit: int = PAGE_LIMIT, job_id: str | None = None, until: datetime | None = None
) -> Call[Page[pressure.Decision]]:
    until_text = None if until is None else until.isoformat()
    query = _query(limit=limit, cursor=cursor, job_id=job_id, until=until_text)
    return Call("GET", "/v1/ticks", Page[pressure.Decision], query=query)


def get_tick(tick_id: int) -> Call[pressure.Decision]:
    return Call("GET", f"/v1/ticks/{tick_id}", pressure.Decision)


def replay_tick(tick_id: int, request: ticks.ReplayRequest, *, key: str) -> Call[ticks.Replay]:
    return Call("POST", f"/v1/ticks/{tick_id}/replay", ticks.Replay, body=request, key=key)


def create_key(request: access.KeyRequest, *, key: str) -> Call[access.CreatedKey]:
    return Call("POST", "/v1/keys", access.CreatedKey, body=request, key=key)


def list_keys(cursor: str | None = None) -> Call[Page[access.Key]]:
    return Call("GET", "/v1/keys", Page[access.Key], query=_query(limit=PAGE_LIMIT, cursor=cursor))


def revoke_key(key_id: str) -> Call[access.Key]:
    return Call("DELETE", f"/v1/keys/{_id(key_id, 'key')}", access.Key)


def set_secret(name: str, request: access.SecretRequest) -> Call[access.Secret]:
    return Call("PUT", f"/v1/secrets/{_id(name, 'secret')}", access.Secret, body=request)


def list_secrets(cursor: str | None = None) -> Call[Page[access.Secret]]:
    return Call("GET", "/v1/secrets", Page[access.Secret], query=_query(limit=PAGE_LIMIT, cursor=cursor))


def delete_secret(name: str) -> Call[access.Secret]:
    return Call("DELETE", f"/v1/secrets/{_id(name, 'secret')}", access.Secret)


def list_audit(cursor: str | None = None) -> Call[Page[access.AuditEntry]]:
    return Call("GET", "/v1/audit", Page[access.AuditEntry], query=_query(limit=PAGE_LIMIT, cursor=cursor))


def get_usage(
    group_by: str, *, since: datetime | None, until: datetime | None, job_id: str | None = None
) -> Call[usage.Usage]:
    query = _query(group_by=group_by, limit=1000, job=None if job_id is None else _id(job_id, "job"))
    query |= _query(**{"from": _moment(since, "since"), "to": _moment(until, "until")})
    return Call("GET", "/v1/usage", usage.Usage, query=query)


def list_offers(
    cursor: str | None = None,
    *,
    gpu_type: str | None = None,
    tier: str | None = None,
    provider: str | None = None,
    max_price: int | None = None,
) -> Call[Page[usage.Offer]]:
    query = _query(limit=PAGE_LIMIT, cursor=cursor, gpu_type=gpu_type, tier=tier, provider=provider)
    query |= _query(max_price=max_price)
    return Call("GET", "/v1/offers", Page[usage.Offer], query=query)


def list_providers() -> Call[providers.Providers]:
    return Call("GET", "/v1/providers", providers.Providers)


def check_providers(*, key: str, reach: bool = False) -> Call[providers.ProviderChecks]:
    query, wait_s = _query(reach="true" if reach else None), 150.0 if reach else 20.0
    return Call("POST", "/v1/providers/check", providers.ProviderChecks, query=query, key=key, wait_s=wait_s)


def list_image_builds(image: str | None = None) -> Call[providers.ImageBuilds]:
    return Call("GET", "/v1/providers/images", providers.ImageBuilds, query=_query(image=image))


def prepare_image(request: providers.ImageRequest, *, key: str) -> Call[providers.ImageBuilds]:
    return Call("POST", "/v1/providers/images", providers.ImageBuilds, body=request, key=key)


def get_price_list(provider: str) -> Call[price_lists.PriceList]:
    return Call("GET", _price_list(provider), price_lists.PriceList)


def set_prices(provider: str, request: price_lists.OwnPricesRequest) -> Call[price_lists.PriceList]:
    return Call("PUT", _price_list(provider), price_lists.PriceList, body=request)


def remove_prices(provider: str, names: Sequence[str] | None) -> Call[price_lists.PriceList]:
    query = _query(names=None if names is None else ",".join(names))
    return Call("DELETE", _price_list(provider), price_lists.PriceList, query=query)


def refresh_prices(*, key: str) -> Call[providers.PriceRefreshes]:
    return Call("POST", "/v1/providers/refresh", providers.PriceRefreshes, key=key, wait_s=20.0)


def search_log(job_id: str, text: str, cursor: str | None = None, *, ignore_case: bool) -> Call[Page[jobs.LogMatch]]:
    query = _query(q=text, limit=PAGE_LIMIT, cursor=cursor, ignore_case="true" if ignore_case else None)
    return Call("GET", _job(job_id, "logs", "search"), Page[jobs.LogMatch], query=query)


def get_metric_curves(job_id: str, *, max_points: int, names: Sequence[str] | None) -> Call[Page[jobs.MetricPoint]]:
    query = _query(max_points=max_points, names=None if names is None else ",".join(names))
    return Call("GET", _job(job_id, "metrics"), Page[jobs.MetricPoint], query=query)


def get_health(*, ready: bool) -> Call[jobs.Health]:
    return Call("GET", "/readyz" if ready else "/healthz", jobs.Health, answers=frozenset({503}))


def _job(job_id: str, *rest: str) -> str:
    return "/".join(("/v1/jobs", _id(job_id, "job"), *rest))


def _price_list(provider: str) -> str:
    return f"/v1/providers/{_id(provider, 'provider')}/prices"


def _model_name(name: str) -> str:
    return f"/v1/model-names/{_id(name, 'name of a model')}"


def _id(value: str, noun: str) -> str:
    """An id as one path segment: it can never reach another path."""
    if not isinstance(value, str) or not value.strip() or value in (".", ".."):
        raise InvalidInput(f"{noun} id: {value!r} is not an id", hint="allpass ps")
    return quote(value.strip(), safe="")


def _label(text: str) -> str:
    """key=value, as it is written everywhere, in the form that the query takes."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidInput(f"label: {text!r} is not key=value", hint='label="team=nlp"')
    return f"{name}:{value}"


def _moment(value: datetime | None, name: str) -> str | None:
    if value is None:
        return None
    if value.utcoffset() is None:
        raise InvalidInput(f"{name}: {value.isoformat()} has no time zone", hint="datetime.now(timezone.utc)")
    return value.isoformat()


def _query(**values: Any) -> dict[str, str | int]:
    return {name: value for name, value in values.items() if value is not None}
