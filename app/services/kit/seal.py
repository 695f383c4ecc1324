"""Sealing: how the values of secrets lie in the database. AES-256-GCM under a key derived from ALLPASS_SECRET_KEY.

The project and the name are part of what is authenticated: a sealed value that is moved to another row opens nothing.
Each sealed value names its key, so that another one can follow while the old one still opens what it sealed
(ALLPASS_EARLIER_SECRET_KEYS).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.errors import AllpassError
from app.settings import Settings

_PURPOSE = b"allpass secrets of projects, 1"
_NONCE_BYTES = 12


class Unsealable(AllpassError):
    """A value that our keys do not open: ALLPASS_SECRET_KEY was changed, or the row was tampered with."""


class Sealer:
    """Seals under one key; opens what that one or an earlier one sealed. `key_id` names the key that seals; it tells
    nothing about it."""

    def __init__(self, secret_key: str, earlier: Sequence[str] = ()) -> None:
        self.key_id, self._cipher = _derive(secret_key)
        self._ciphers = dict([*(_derive(one) for one in earlier), (self.key_id, self._cipher)])

    @classmethod
    def of(cls, settings: Settings) -> Sealer:
        """With the keys that the settings name."""
        return cls(settings.secret_key.get_secret_value(), settings.earlier_secret_keys.get_secret_value().split())

    @property
    def earlier_key_ids(self) -> frozenset[str]:
        """The keys that open, but seal no more."""
        return frozenset(self._ciphers) - {self.key_id}

    def seal(self, project_id: str, name: str, value: str) -> bytes:
        """The value for the row of this project and name. Sealing the same twice gives different bytes."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value.encode(), _context(self.key_id, project_id, name))

    def open(self, project_id: str, name: str, sealed: bytes, key_id: str) -> str:
        """The value. Raises Unsealable."""
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise Unsealable(
                f"secret {name} of {project_id} was sealed under key {key_id}, and ALLPASS_SECRET_KEY gives "
                f"{self.key_id}; name the key of then in ALLPASS_EARLIER_SECRET_KEYS, or set the secret again"
            )
        nonce, sealed_value = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, sealed_value, _context(key_id, project_id, name)).decode()
        except InvalidTag as error:
            raise Unsealable(f"the stored value of secret {name} of {project_id} was altered; set it again") from error


@lru_cache(maxsize=32)
def _derive(secret_key: str) -> tuple[str, AESGCM]:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(secret_key.encode())
    return "s1-" + hashlib.sha256(b"id of " + key).hexdigest()[:16], AESGCM(key)


def _context(key_id: str, project_id: str, name: str) -> bytes:
    return f"{key_id}\0{project_id}\0{name}".encode()
