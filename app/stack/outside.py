"""What a shell may hold that leads out of this machine: accounts at rental companies, and a bucket.

Whoever works for a team has these settings in the shell. A stack of one machine rents nothing by them, and writes into
no bucket, unless it is told to: machines could not call it, and it would clear away what others keep in the bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from app.core.reach import is_public
from app.errors import InvalidInput


class Real(StrEnum):
    """What `allpass up --real` can name."""

    MODAL = "modal"
    VAST = "vast"
    LAMBDA = "lambda"
    S3 = "s3"


_ACCOUNTS = {
    Real.MODAL: ("ALLPASS_MODAL_TOKEN_ID", "ALLPASS_MODAL_TOKEN_SECRET"),
    Real.VAST: ("ALLPASS_VAST_API_KEY",),
    Real.LAMBDA: ("ALLPASS_LAMBDA_API_KEY",),
    Real.S3: ("ALLPASS_S3_ACCESS_KEY", "ALLPASS_S3_SECRET_KEY", "ALLPASS_S3_BUCKET", "ALLPASS_OBJECTS_STORE"),
}
# The stack has a local cloud of its own, or none.
_NEVER = ("ALLPASS_LOCAL_CLOUD_URL", "ALLPASS_LOCAL_CLOUD_KEY")
_PUBLIC_URL, _OBJECTS_URL = "ALLPASS_PUBLIC_URL", "ALLPASS_OBJECTS_URL"


def read_real(words: str) -> frozenset[Real]:
    """The names in `vast,modal`. Raises InvalidInput for a word that is none."""
    named = [word.strip() for word in words.split(",") if word.strip()]
    unknown = [word for word in named if word not in set(Real)]
    if unknown:
        raise InvalidInput(
            f"{unknown[0]!r} is none of {', '.join(Real)}; several are separated by commas", param="real"
        )
    return frozenset(map(Real, named))


def given_settings(environment: Mapping[str, str], real: Iterable[Real]) -> dict[str, str]:
    """The settings of a shell that a stack takes over: all but accounts that were not named."""
    withheld = withheld_settings(environment, real)
    return {name: value for name, value in environment.items() if name.startswith("ALLPASS_") and name not in withheld}


def withheld_settings(environment: Mapping[str, str], real: Iterable[Real]) -> set[str]:
    """The settings of accounts that the shell holds, and that were not named."""
    used = set(real)
    accounts = {name for one, names in _ACCOUNTS.items() if one not in used for name in names}
    return {name for name in environment if name in accounts or name in _NEVER}


def beside(port: int) -> int:
    """Where the object store listens when machines are rented: a port that whoever makes a tunnel can name."""
    return port + 1 if port < 65_535 else port - 1


def rents(real: Iterable[Real]) -> bool:
    """Whether any of them is a company that machines are rented from."""
    return any(one is not Real.S3 for one in real)


def check_named(environment: Mapping[str, str], real: frozenset[Real], *, port: int, objects_port: int) -> None:
    """Raises InvalidInput naming the setting that the named ones cannot do without: the account itself, and addresses
    under which rented machines reach this one."""
    for one in sorted(real):
        for name in _ACCOUNTS[one]:
            if not environment.get(name):
                raise InvalidInput(f"--real {one} needs {name}, which is not set in this shell", param=name)
    if rents(real) and environment.get("ALLPASS_PRIVATE_ADDRESSES", "").lower() not in {"1", "true", "yes", "on"}:
        stores = {} if Real.S3 in real else {_OBJECTS_URL: objects_port}
        for name, behind in {_PUBLIC_URL: port, **stores}.items():
            if not is_public(environment.get(name, "")):
                raise InvalidInput(
                    f"--real needs {name}, an address that the internet reaches and that leads to port {behind} of "
                    f"this host (a tunnel, a reverse proxy); it is {environment.get(name) or 'not set'}",
                    param=name,
                )


def own_addresses(environment: Mapping[str, str], real: Iterable[Real]) -> dict[str, str]:
    """Where rented machines reach this one, as the shell says; nothing when none is rented."""
    if not rents(real):
        return {}
    return {name: environment[name] for name in (_PUBLIC_URL, _OBJECTS_URL) if environment.get(name)}
