"""A fine-tuning whose metrics are told to Weights & Biases as well: from its machine, with the project's own key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allpass.recipe.tracked_run import LONGEST_TAG, WANDB_KEY
from app.db.access.secrets import known_names
from app.db.connection import Connection
from app.errors import InvalidInput


def tracked_settings(integrations: list[dict[str, Any]], base: str, tuning_id: str) -> dict[str, Any]:
    """What the recipe is told of it. The run has the fine-tuning's id, on whichever machine; its name too, where it
    was given none."""
    for one in integrations:
        told = one["wandb"]
        own = (f"allpass/{what}"[:LONGEST_TAG] for what in ("finetune", base.replace("/", "-"), tuning_id))
        return {"wandb": {"name": tuning_id, **told, "tags": [*told.get("tags", ()), *own], "run": tuning_id}}
    return {}


async def tracked_template(connection: Connection, project_id: str, template: Mapping[str, Any]) -> dict[str, Any]:
    """The job's, with the secret that the tracker asks for. Raises InvalidInput where the project has none."""
    if not await known_names(connection, project_id, [WANDB_KEY]):
        raise InvalidInput(
            f"integrations: wandb needs the project's secret {WANDB_KEY}, and there is none; set it first: "
            f"allpass secret set {WANDB_KEY}",
            param="integrations",
            code="missing_secret",
        )
    secrets = list(template.get("secrets") or ())
    return {**template, "secrets": secrets if WANDB_KEY in secrets else [*secrets, WANDB_KEY]}
