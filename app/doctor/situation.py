"""Which installation is looked at: the one of the settings in this shell, a stack that serves, or one that would."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import SecretStr, ValidationError

from app.core.model.finding import Finding, wrong
from app.settings import Settings
from app.stack.layout import StackPaths
from app.stack.outside import S3, account_names, accounts, accounts_in, beside, rents

_DEFAULT_PORT = 7700
_OBJECTS_PORT = 7701  # of `python -m app.storage.server`
_DATABASE = "ALLPASS_DATABASE_URL"
_WITH_THE_SERVER = "(the server holds it)"  # a key that this shell need not have: the server is asked


class SetUpKind(StrEnum):
    SERVICE = "service"  # settings of a server, in this shell
    RUNNING = "running"  # a stack of `allpass up`
    PLANNED = "planned"  # what `allpass up --real` would start from this shell


@dataclass(frozen=True, slots=True)
class Situation:
    """`real`: the accounts that `allpass up --real` was given, or would be."""

    kind: SetUpKind
    settings: Settings
    layout: StackPaths
    real: frozenset[str]
    objects_port: int

    @property
    def secrets(self) -> list[str]:
        """Everything that no report may hold."""
        sections = [one.section for one in self.settings.providers if one.section is not None]
        values = [value for each in (self.settings, *sections) for value in each.__dict__.values()]
        texts = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        texts += [login.password for login in self.settings.logins.by_prefix.values()]
        return [word for text in texts for word in (text, *text.split()) if word] + _password_of(self.settings)


def look_around(data_dir: Path, environment: Mapping[str, str]) -> Situation | list[Finding]:
    """What there is, or what is wrong with the settings. Nothing is made or written."""
    layout = StackPaths(data_dir.resolve())
    if environment.get(_DATABASE):
        return _read(SetUpKind.SERVICE, environment, layout, frozenset(), _OBJECTS_PORT)
    if layout.is_held() and layout.server_file.exists():
        told = json.loads(layout.server_file.read_text())
        real = frozenset(told["real"])
        opened = {name: environment.get(name) or _WITH_THE_SERVER for name in account_names(real - {S3})}
        opened |= {name: environment[name] for name in accounts_in(environment, real & {S3})}
        return _read(SetUpKind.RUNNING, {**told["settings"], **opened}, layout, real, told["objects_port"])
    return _planned(layout, environment)


def _planned(layout: StackPaths, environment: Mapping[str, str]) -> Situation | list[Finding]:
    real = frozenset(one for one in accounts() if accounts_in(environment, {one}))
    told = environment.get("ALLPASS_PORT", "")
    port = int(told) if told.isascii() and told.isdigit() else _DEFAULT_PORT  # what is none, Settings will say
    objects_port = beside(port) if rents(real) else _OBJECTS_PORT
    made = {
        _DATABASE: "postgresql://allpass@127.0.0.1:1/none",
        "ALLPASS_SECRET_KEY": secrets.token_hex(32),
        "ALLPASS_OBJECTS_SIGNING_KEY": secrets.token_hex(32),
        "ALLPASS_OBJECTS_DIR": str(layout.objects),
    }
    given = {"ALLPASS_PORT": str(port), "ALLPASS_OBJECTS_URL": f"http://127.0.0.1:{objects_port}", **environment}
    given["ALLPASS_PUBLIC_URL"] = environment.get("ALLPASS_PUBLIC_URL") or f"http://127.0.0.1:{port}"
    if S3 not in real:
        given.pop("ALLPASS_OBJECTS_STORE", None)
    return _read(SetUpKind.PLANNED, {**given, **made}, layout, real, objects_port)


def _read(
    kind: SetUpKind, environment: Mapping[str, str], layout: StackPaths, real: frozenset[str], objects_port: int
) -> Situation | list[Finding]:
    try:
        with _environment(environment if kind is SetUpKind.SERVICE else _without_local_cloud(environment)):
            settings = Settings()
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        return [_problem("_".join(str(part) for part in one["loc"]).upper(), one["msg"]) for one in problems]
    return Situation(kind, settings, layout, real, objects_port)


def _without_local_cloud(environment: Mapping[str, str]) -> dict[str, str]:
    """A stack has one of its own, or none: the shell's is not looked at."""
    return {name: value for name, value in environment.items() if not name.startswith("ALLPASS_LOCAL_CLOUD_")}


def _problem(name: str, message: str) -> Finding:
    """Without the value, which may be a secret."""
    return wrong(
        "settings", "setting_wrong", f"ALLPASS_{name}: {message}", f"correct ALLPASS_{name} (see .env.example)"
    )


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Settings are read from the environment and nowhere else, so for a moment it is that of the installation."""
    before = dict(os.environ)
    try:
        for name in [name for name in os.environ if name.startswith("ALLPASS_")]:
            del os.environ[name]
        os.environ.update({name: value for name, value in settings.items() if name.startswith("ALLPASS_")})
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _password_of(settings: Settings) -> list[str]:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        password = make_url(settings.database_url.get_secret_value()).password
    except (ArgumentError, ValueError):
        return []
    return [str(password)] if password else []
