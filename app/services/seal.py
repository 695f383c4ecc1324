"""Sealing: how the values of secrets lie in the database. AES-256-GCM under a key derived from ALLPASS_SECRET_KEY.

The project and the name are part of what is authenticated: a sealed value that is moved to another row opens nothing.
Each sealed value names its key, so that another one can follow while the old one still opens what it sealed.
"""

from __future__ import annotations

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.errors import AllpassError

_PURPOSE = b"allpass secrets of projects, 1"
_NONCE_BYTES = 12


class Unsealable(AllpassError):
    """A value that this key does not open: ALLPASS_SECRET_KEY was changed, or the row was tampered with."""


class Sealer:
    """`key_id` names the key that seals; it tells nothing about it."""

    def __init__(self, secret_key: str) -> None:
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(secret_key.encode())
        self._cipher = AESGCM(key)
        self.key_id = "s1-" + hashlib.sha256(b"id of " + key).hexdigest()[:16]

    def seal(self, project_id: str, name: str, value: str) -> bytes:
        """The value for the row of this project and name. Sealing the same twice gives different bytes."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value.encode(), self._context(project_id, name))

    def open(self, project_id: str, name: str, sealed: bytes, key_id: str) -> str:
        """The value. Raises Unsealable."""
        if key_id != self.key_id:
            raise Unsealable(
                f"secret {name} of {project_id} was sealed under key {key_id}, and ALLPASS_SECRET_KEY gives "
                f"{self.key_id}; start with the old one, or set the secret again"
            )
        nonce, sealed_value = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, sealed_value, self._context(project_id, name)).decode()
        except InvalidTag as error:
            raise Unsealable(f"the stored value of secret {name} of {project_id} was altered; set it again") from error

    def _context(self, project_id: str, name: str) -> bytes:
        return f"{self.key_id}\0{project_id}\0{name}".encode()
