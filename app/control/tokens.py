"""A node's token: what its agent proves its identity with."""

from __future__ import annotations

import hashlib
import hmac

_PURPOSE = b"allpass node token\x00"


class TokenMint:
    """Makes the token of a node from a secret that only the service holds.

    The same node always gets the same token. A create call whose answer was lost can so be made again, by any
    process, and whichever machine comes up is let in, although the token itself is kept nowhere: the database has
    its hash only, until the node is on its way out.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def token(self, node_id: str) -> str:
        """64 hex characters that nobody without the secret can tell from chance."""
        return hmac.new(self._secret, _PURPOSE + node_id.encode(), hashlib.sha256).hexdigest()


def token_sha256(token: str) -> bytes:
    """What the database keeps of a token."""
    return hashlib.sha256(token.encode()).digest()
