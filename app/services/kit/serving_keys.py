"""The token of jobs that answer for a project's models: it opens their requests, and nothing else."""

from __future__ import annotations

import hashlib
import hmac

from app.settings import Settings

_PURPOSE = b"allpass model server\x00"


class ServingKeys:
    """One for each project, from a secret that only the service holds: none is kept but as a secret of the project."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    @classmethod
    def of(cls, settings: Settings) -> ServingKeys:
        return cls(settings.secret_key.get_secret_value())

    def token(self, project_id: str) -> str:
        return hmac.new(self._secret, _PURPOSE + project_id.encode(), hashlib.sha256).hexdigest()

    def fits(self, project_id: str, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(self.token(project_id).encode(), token.encode())
