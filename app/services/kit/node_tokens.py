"""What a machine proves its identity with: the token it is started with, and the one it gets for that."""

from __future__ import annotations

import hashlib
import hmac

from app.settings import Settings

_NODE = b"allpass node token\x00"
_JOIN = b"allpass join token\x00"


class TokenMint:
    """Makes tokens from a secret that only the service holds. None is kept: the database has hashes.

    The same node always gets the same token, and the same create call the same join token: whoever repeats an answer
    that was lost, in whichever process, gives the same one.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    @classmethod
    def of(cls, settings: Settings) -> TokenMint:
        """The mint of this installation."""
        return cls(settings.secret_key.get_secret_value())

    def token(self, node_id: str) -> str:
        """The bearer token of a node's agent: 64 hex characters that nobody without the secret can tell from chance."""
        return self._made(_NODE, node_id)

    def join_token(self, node_id: str, attempt: int) -> str:
        """What travels inside one create call, and is exchanged for `token` by the machine that comes of it."""
        return self._made(_JOIN, f"{node_id}/{attempt}")

    def _made(self, purpose: bytes, subject: str) -> str:
        return hmac.new(self._secret, purpose + subject.encode(), hashlib.sha256).hexdigest()


def token_sha256(token: str) -> bytes:
    """What the database keeps of a token."""
    return hashlib.sha256(token.encode()).digest()
