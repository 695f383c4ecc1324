"""Paths that look like those of a job, and are not."""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from app.api.errors import OWN_METHODS


class OwnPath(APIRoute):
    """Its path is its own for every method: without that, others of /v1/jobs/plan would look up a job called plan."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        found, child = super().matches(scope)
        if found is not Match.PARTIAL:
            return found, child
        scope[OWN_METHODS] = self.methods  # where whoever answers with 405 finds it
        return Match.FULL, child
