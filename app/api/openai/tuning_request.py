"""From the body of a request to what is asked for: OpenAI's words, and what of ours rides along."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from allpass.errors import InvalidInput as RecipeError
from allpass.errors import InvalidTemplate
from allpass.recipe.tracked_run import checked_wandb
from allpass.templates import check_template
from app.api.openai.wire import Hyperparameters, Integration, Ours, TuningCreate, WandbAsked
from app.errors import InvalidInput
from app.services.doors.create_tuning import OWN_SETTINGS, TuningAsked
from app.services.jobs.compose_job import deadline_ms

DEADLINE, MAX_COST = "allpass_deadline", "allpass_max_cost"
_SEEDS = 2**31


def read_tuning(body: TuningCreate, *, now_ms: int) -> TuningAsked:
    """Raises InvalidInput (with `param` and `code` as OpenAI has them)."""
    method, hyperparameters = _method(body)
    metadata = body.metadata or {}
    ours = _ours(body.allpass, metadata)
    if ours.deadline is not None:
        _check_deadline(ours.deadline, metadata, now_ms)
    return TuningAsked(
        training_file=body.training_file,
        validation_file=body.validation_file,
        method=method,
        hyperparameters=hyperparameters,
        seed=random.randrange(_SEEDS) if body.seed is None else body.seed,  # noqa: S311 - no secret
        suffix=body.suffix,
        metadata=metadata,
        integrations=_integrations(body.integrations or []),
        deadline=ours.deadline,
        template=_template(ours),
        settings=_settings(ours.settings),
    )


def _method(body: TuningCreate) -> tuple[str, dict[str, float]]:
    if body.method is None:
        return "supervised", _given(body.hyperparameters)
    told = body.method
    if told.type == "reinforcement" or told.reinforcement is not None:
        raise InvalidInput(
            "method: reinforcement fine-tuning needs graders, which this server does not run; use supervised or dpo",
            param="method",
            code="unsupported_method",
        )
    other = told.dpo if told.type == "supervised" else told.supervised
    if other is not None:
        what = "dpo" if told.type == "supervised" else "supervised"
        raise InvalidInput(
            f"method.{what}: its hyperparameters are not those of method {told.type!r}",
            param=f"method.{what}",
            code="invalid_hyperparameters",
        )
    own = told.dpo if told.type == "dpo" else told.supervised
    if own is not None and body.hyperparameters is not None:
        raise InvalidInput(
            "hyperparameters: they are given in method, too; leave one of the two out", param="hyperparameters"
        )
    return told.type, _given(body.hyperparameters if own is None else own.hyperparameters)


def _given(asked: Hyperparameters | None) -> dict[str, float]:
    values = {} if asked is None else asked.model_dump()
    return {name: value for name, value in values.items() if value != "auto"}


def _ours(ours: Ours, metadata: Mapping[str, str]) -> Ours:
    """What rides in metadata counts as what is said in `allpass`. Raises InvalidInput for a cap that is no number."""
    told = ours.model_copy()
    if told.deadline is None and DEADLINE in metadata:
        told.deadline = metadata[DEADLINE]
    if told.max_cost_usd is None and MAX_COST in metadata:
        try:
            told.max_cost_usd = float(metadata[MAX_COST].lstrip("$"))
        except ValueError:
            raise InvalidInput(
                f"metadata.{MAX_COST}: {metadata[MAX_COST][:80]!r} is no number of dollars; write e.g. 25",
                param=f"metadata.{MAX_COST}",
            ) from None
    return told


def _check_deadline(text: str, metadata: Mapping[str, str], now_ms: int) -> None:
    param = f"metadata.{DEADLINE}" if metadata.get(DEADLINE) == text else "allpass.deadline"
    try:
        deadline_ms(text, now_ms)
    except InvalidInput as error:
        raise InvalidInput(error.message.replace("soft_deadline", param, 1), param=param) from None


def _template(ours: Ours) -> dict[str, Any]:
    """A job's template, checked. Raises InvalidInput."""
    told = dict(ours.template)
    if ours.gpu is not None:
        told["gpu"] = {**(told.get("gpu") or {}), "type": ours.gpu}
    if ours.max_cost_usd is not None:
        told["caps"] = {**(told.get("caps") or {}), "max_cost_usd": ours.max_cost_usd}
    try:
        checked = check_template(told, "allpass.template")
    except InvalidTemplate as error:
        raise InvalidInput(error.message, param=f"allpass.template.{error.problems[0].where}") from None
    return checked.model_dump(mode="json", exclude_unset=True)


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    for name in settings:
        if name not in OWN_SETTINGS:
            raise InvalidInput(
                f"allpass.settings.{name[:80]}: no setting that may be chosen here; these may be: "
                f"{', '.join(sorted(OWN_SETTINGS))}",
                param=f"allpass.settings.{name[:80]}",
            )
    return dict(settings)


def _integrations(told: list[Integration]) -> list[dict[str, Any]]:
    """Raises InvalidInput for what is not connected, and for what the tracker itself would refuse."""
    for place, one in enumerate(told):
        if one.type != "wandb":
            raise InvalidInput(
                f"integrations[{place}].type: {one.type[:80]!r} is not connected on this server, wandb is; read the "
                "job's metrics from its events, its results file or the dashboard",
                param="integrations",
                code="unsupported_integration",
            )
        if one.wandb is None:
            raise InvalidInput(
                f"integrations[{place}].wandb: is missing; it names at least a project", param="integrations"
            )
        if place:
            raise InvalidInput("integrations: two runs of wandb; one of each type is taken", param="integrations")
    return [{"type": "wandb", "wandb": _checked(one.wandb)} for one in told if one.wandb is not None]


def _checked(asked: WandbAsked) -> dict[str, Any]:
    try:
        checked_wandb(asked.model_dump(exclude_none=True))
    except RecipeError as error:
        raise InvalidInput(f"integrations: {error.message}", param="integrations") from None
    return asked.model_dump(exclude_none=True)
