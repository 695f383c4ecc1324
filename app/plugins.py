"""Finding the providers that are installed: entry points of the group `allpass.providers`, and their settings.

What is wrong with a package from outside stays with that package: it is named, and the others are found all the same.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from app.errors import InvariantBroken
from app.ports.plugin import GROUP, ProviderPlugin, ProviderSettings

OWN_PACKAGE = "allpass-server"
_CHECKOUT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_NAME = re.compile(r"[a-z][a-z0-9]{0,30}")
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class FoundProvider:
    """One entry point. `problem` says in words why it cannot be used; then there is no plugin, or no section.

    `owns_name`: false for a name that is none, or that Allpass has itself; then nothing is filed under it.
    """

    name: str
    package: str
    plugin: ProviderPlugin[Any] | None = None
    section: ProviderSettings | None = None
    is_configured: bool = False
    is_real: bool = True
    promised_cuda: float = 0.0
    problem: str = ""
    owns_name: bool = True

    @property
    def is_own(self) -> bool:
        """Whether it ships with Allpass."""
        return self.package == OWN_PACKAGE

    @property
    def prefix(self) -> str:
        """Of its environment variables."""
        return f"ALLPASS_{self.name.upper()}_"

    @property
    def account_variables(self) -> tuple[str, ...]:
        """The environment variables that open its account."""
        if self.plugin is None:
            return ()
        settings = self.plugin.settings
        secret = {name for name, field in settings.model_fields.items() if SecretStr.__name__ in str(field.annotation)}
        opening = [name for name in settings.model_fields if name in secret | settings.opens_account]
        return tuple(f"{self.prefix}{name.upper()}" for name in opening)


def found_providers() -> tuple[FoundProvider, ...]:
    """Those that ship with Allpass first, then the others, by name. Their modules are loaded once."""
    return _found(tuple(sys.path))


@lru_cache(maxsize=4)
def _found(_path: tuple[str, ...]) -> tuple[FoundProvider, ...]:
    own = _own_entry_points()
    if not own:
        raise InvariantBroken(f"{OWN_PACKAGE} is not installed as a package: install it again, with pip")
    taken = {one.name for one in own}
    others = sorted(
        (one for one in entry_points(group=GROUP) if _package_of(one) != OWN_PACKAGE),
        key=lambda one: (one.name, _package_of(one)),
    )
    counts = Counter(one.name for one in others)
    loaded = [_load(one, OWN_PACKAGE) for one in own]
    for one in others:
        package = _package_of(one)
        if one.name in taken:
            problem = f"{OWN_PACKAGE} has a provider of this name"
            loaded.append(FoundProvider(one.name, package, problem=problem, owns_name=False))
        elif counts[one.name] > 1:
            loaded.append(_broken(one.name, package, "several packages have a provider of this name; remove one"))
        else:
            loaded.append(_load(one, package))
    return tuple(loaded)


def _own_entry_points() -> list[EntryPoint]:
    """In a checkout as its project file says: what is installed of it may be older."""
    if _CHECKOUT.is_file():
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == OWN_PACKAGE:
            given = project["entry-points"][GROUP]
            return [EntryPoint(name, value, GROUP) for name, value in given.items()]
    return [one for one in entry_points(group=GROUP) if _package_of(one) == OWN_PACKAGE]


def _package_of(one: EntryPoint) -> str:
    return one.dist.name if one.dist is not None else "?"


def _load(one: EntryPoint, package: str) -> FoundProvider:
    if _NAME.fullmatch(one.name) is None:
        problem = "its name must be lower-case letters and digits, a letter first"
        return FoundProvider(one.name, package, problem=problem, owns_name=False)
    try:
        plugin = one.load()
    except (Exception, SystemExit) as error:
        if package == OWN_PACKAGE:
            raise
        return _broken(one.name, package, f"{one.value} cannot be imported: {_words(error)}")
    if not isinstance(plugin, ProviderPlugin) or not _is_section(plugin.settings):
        return _broken(one.name, package, f"{one.value} is no ProviderPlugin with a class of ProviderSettings")
    return FoundProvider(one.name, package, plugin)


def _is_section(settings: object) -> bool:
    return isinstance(settings, type) and issubclass(settings, ProviderSettings)


def _broken(name: str, package: str, problem: str) -> FoundProvider:
    return FoundProvider(name, package, problem=problem)


def read_sections(given: Mapping[str, Any], core_fields: Collection[str]) -> tuple[FoundProvider, ...]:
    """All providers with their settings: of `given` (`vast_api_key`), else of the environment.

    Raises ValidationError naming the setting for those that ship with Allpass; with another one that is its problem.
    """
    return tuple(_read(one, given, core_fields) for one in found_providers())


def _read(found: FoundProvider, given: Mapping[str, Any], core_fields: Collection[str]) -> FoundProvider:
    if found.plugin is None:
        return found
    lead = f"{found.name}_"
    clash = next((name for name in core_fields if name.startswith(lead)), None)
    if clash is not None:
        problem = f"its settings would mix with ALLPASS_{clash.upper()}"
        return replace(found, plugin=None, problem=problem, owns_name=False)
    own = {name.removeprefix(lead): value for name, value in given.items() if name.startswith(lead)}
    try:
        section = found.plugin.settings(_env_prefix=found.prefix, **own)
        return replace(
            found,
            section=section,
            is_configured=bool(section.is_configured),
            is_real=bool(section.is_real),
            promised_cuda=float(section.promised_cuda),
        )
    except ValidationError as error:
        if found.is_own:
            raise _renamed(error, lead) from None
        return replace(found, problem=_told(error, found.prefix))
    except Exception as error:
        if found.is_own:
            raise
        return replace(found, problem=f"its settings cannot be read: {_words(error)}")


def _told(error: ValidationError, prefix: str) -> str:
    """Every wrong setting by its variable, without its value: that may be a key."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"setting {prefix}{_variable(one['loc'])}: {one['msg']}" for one in problems)[:_LONGEST]


def _variable(place: Iterable[int | str]) -> str:
    return "_".join(str(part) for part in place).upper()


def _renamed(error: ValidationError, lead: str) -> ValidationError:
    """The same, of `vast_disk_gb` in place of `disk_gb`."""
    lines = [
        InitErrorDetails(
            type=PydanticCustomError("provider_setting", "{told}", {"told": one["msg"]}),
            loc=(f"{lead}{one['loc'][0]}" if one["loc"] else lead.rstrip("_"), *one["loc"][1:]),
            input=None,
        )
        for one in error.errors(include_url=False, include_input=False)
    ]
    return ValidationError.from_exception_data(error.title, lines)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST]
