"""What a shell may hold that leads out of this machine: accounts at rental companies, and a bucket.

Whoever works for a team has these settings in the shell. A stack of one machine rents nothing by them, and writes into
no bucket, unless it is told to: machines could not call it, and it would clear away what others keep in the bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.core.reach import is_public
from app.errors import InvalidInput
from app.plugins import found_providers

S3 = "s3"
_BUCKET = ("ALLPASS_S3_ACCESS_KEY", "ALLPASS_S3_SECRET_KEY", "ALLPASS_S3_BUCKET", "ALLPASS_OBJECTS_STORE")
# The stack has a local cloud of its own, or none.
_LOCAL = "local"
_NEVER = ("ALLPASS_LOCAL_CLOUD_URL", "ALLPASS_LOCAL_CLOUD_KEY")
_LOGINS = "ALLPASS_REGISTRY_LOGINS"  # of use where machines are rented
_PUBLIC_URL, _OBJECTS_URL = "ALLPASS_PUBLIC_URL", "ALLPASS_OBJECTS_URL"


def accounts() -> dict[str, tuple[str, ...]]:
    """What `allpass up --real` can name, and the settings that open each: the installed providers, and a bucket."""
    usable = [
        one
        for one in found_providers()
        if one.plugin is not None and one.name != _LOCAL and (one.account_variables or not one.is_own)
    ]
    return {**{one.name: one.account_variables for one in usable}, S3: _BUCKET}


def read_real(words: str) -> frozenset[str]:
    """The names in `vast,modal`. Raises InvalidInput for a word that is none."""
    named = [word.strip() for word in words.split(",") if word.strip()]
    known = accounts()
    unknown = [word for word in named if word not in known]
    if unknown:
        raise InvalidInput(
            f"{unknown[0]!r} is none of {', '.join(known)}; several are separated by commas", param="real"
        )
    return frozenset(named)


def given_settings(environment: Mapping[str, str], real: Iterable[str]) -> dict[str, str]:
    """The settings of a shell that a stack takes over: all but accounts that were not named."""
    withheld = withheld_settings(environment, real)
    return {name: value for name, value in environment.items() if name.startswith("ALLPASS_") and name not in withheld}


def withheld_settings(environment: Mapping[str, str], real: Iterable[str]) -> set[str]:
    """The settings of accounts that the shell holds, and that were not named."""
    used = set(real)
    unused = {name for one, names in accounts().items() if one not in used for name in names}
    unused |= set() if rents(used) else {_LOGINS}
    # Which of their settings are keys is not known.
    unread = tuple(one.prefix for one in found_providers() if one.plugin is None and one.owns_name)
    return {name for name in environment if name in unused or name in _NEVER or name.startswith(unread)}


def accounts_in(environment: Mapping[str, str], real: Iterable[str]) -> set[str]:
    """The settings of these accounts, of those that the environment has whole; addresses and habits of a company need
    no account, and are not among them."""
    known = accounts()
    whole = {one for one in real if known.get(one) and all(environment.get(name) for name in known[one])}
    return account_names(whole)


def account_names(real: Iterable[str]) -> set[str]:
    """The settings that open these accounts; none of a provider that is not installed any more."""
    known = accounts()
    return {name for one in real for name in known.get(one, ())}


def beside(port: int) -> int:
    """Where the object store listens when machines are rented: a port that whoever makes a tunnel can name."""
    return port + 1 if port < 65_535 else port - 1


def rents(real: Iterable[str]) -> bool:
    """Whether any of them is a company that machines are rented from."""
    return any(one != S3 for one in real)


def check_named(environment: Mapping[str, str], real: frozenset[str], *, port: int, objects_port: int) -> None:
    """Raises InvalidInput naming the setting that the named ones cannot do without: the account itself, and addresses
    under which rented machines reach this one."""
    opening = accounts()
    for one in sorted(real):
        for name in opening[one]:
            if not environment.get(name):
                raise InvalidInput(f"--real {one} needs {name}, which is not set in this shell", param=name)
    if rents(real) and environment.get("ALLPASS_PRIVATE_ADDRESSES", "").lower() not in {"1", "true", "yes", "on"}:
        stores = {} if S3 in real else {_OBJECTS_URL: objects_port}
        for name, behind in {_PUBLIC_URL: port, **stores}.items():
            if not is_public(environment.get(name, "")):
                raise InvalidInput(
                    f"--real needs {name}, an address that the internet reaches and that leads to port {behind} of "
                    f"this host (a tunnel, a reverse proxy); it is {environment.get(name) or 'not set'}",
                    param=name,
                )


def own_addresses(environment: Mapping[str, str], real: Iterable[str]) -> dict[str, str]:
    """Where rented machines reach this one, as the shell says; nothing when none is rented."""
    if not rents(real):
        return {}
    return {name: environment[name] for name in (_PUBLIC_URL, _OBJECTS_URL) if environment.get(name)}
