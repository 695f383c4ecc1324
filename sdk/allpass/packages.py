"""The packages that code asks for, read where people write them down: uv.lock, requirements.txt, pyproject.toml, or the
head of a single script (`# /// script`). Nothing is installed here, and nothing of the code is run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from allpass.errors import BundleError
from allpass.wire.apps import Runtime

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REQUIREMENTS, PROJECT, LOCK = "requirements.txt", "pyproject.toml", "uv.lock"
_MOST_INCLUDED = 20
_INLINE = re.compile(r"(?m)^# /// script\s*$\n(?P<content>(?:^#(?:| .*)$\n?)+?)^# ///\s*$")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_HASHES = re.compile(r"\s--hash[= ]\S+")


@dataclass(frozen=True)
class Packages:
    """`pip`: requirement specifiers. `left_out`: lines that a job's machine does not heed, each with where it is."""

    source: str
    pip: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def with_packages(
    runtime: Mapping[str, Any] | Runtime | None, code: str | os.PathLike[str]
) -> Mapping[str, Any] | Runtime | None:
    """The runtime with the packages that the code asks for, unless it names its own."""
    given = dict(runtime) if isinstance(runtime, Mapping) else {}
    if isinstance(runtime, Runtime) or (runtime is not None and not isinstance(runtime, Mapping)) or "pip" in given:
        return runtime
    found = find_packages(Path(code))
    return runtime if found is None else {**given, "pip": list(found.pip)}


def find_pip(code: Path, named: Sequence[str] = (), file: str | None = None) -> Packages:
    """All packages of a job: those that `file` asks for (None: what the code asks for; "none": nothing), and, before
    what it says of the same ones, those that are `named`. Raises BundleError, naming file and line."""
    if file is not None and file.lower() != "none" and not Path(file).is_file():
        raise BundleError(f"requirements: there is no file {file!r}", hint=f"--requirements {REQUIREMENTS}, or none")
    if file is None:
        found = find_packages(code) if code.exists() else None
    else:
        found = None if file.lower() == "none" else read_requirements(Path(file))
    own = [_checked(text, "pip") for text in named]
    if found is None:
        return Packages("--pip", tuple(own))
    taken = {_name(text) for text in own}
    rest = [text for text in found.pip if _name(text) not in taken]
    source = f"{found.source} and --pip" if own and rest else "--pip" if own else found.source
    return Packages(source, (*own, *rest), found.left_out)


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def find_packages(code: Path) -> Packages | None:
    """What `code`, a script or a folder, asks for; None where it says nothing. Raises BundleError."""
    if code.is_file():
        return _inline(code) or _beside(code.parent)
    locked, project = code / LOCK, code / PROJECT
    if locked.is_file() and project.is_file():
        return _locked(locked, _toml(project))
    return _beside(code) or (_project(project) if project.is_file() else None)


def read_requirements(file: Path) -> Packages:
    """A file in the form of requirements.txt, with those that it includes."""
    pip: list[str] = []
    left_out: list[str] = []
    for where, line in _lines(file, []):
        option = _read_option(line)
        if option:
            left_out.append(f"{where}: {line}")
        else:
            pip.append(_checked(line, where))
    return Packages(file.name, tuple(dict.fromkeys(pip)), tuple(left_out))


def _beside(folder: Path) -> Packages | None:
    file = folder / REQUIREMENTS
    return read_requirements(file) if file.is_file() else None


def _lines(file: Path, inside: list[Path]) -> Iterator[tuple[str, str]]:
    """Lines with where they are, joined where one goes on; those of included files in their place."""
    if file.resolve() in inside or len(inside) >= _MOST_INCLUDED:
        raise BundleError(
            f"{file.name}: includes itself, or too many others", path=file.name, hint="take that line out"
        )
    start, whole = 0, ""
    for number, raw in enumerate(_text(file).splitlines(), 1):
        start = start if whole else number
        line = _COMMENT.sub("", raw).rstrip()
        if line.endswith("\\"):
            whole += line[:-1]
            continue
        line, whole = _HASHES.sub("", whole + line).strip(), ""
        included = re.fullmatch(r"(?:-r|--requirement)[\s=]*(\S+)", line)
        if included:
            yield from _lines(_included(file, included[1], start), [*inside, file.resolve()])
        elif line:
            yield f"{file.name}, line {start}", line


def _included(file: Path, name: str, number: int) -> Path:
    found = file.parent / name
    if not found.is_file():
        raise BundleError(
            f"{file.name}, line {number}: includes {name!r}, which is not there",
            path=file.name,
            hint="take the line out",
        )
    return found


def _read_option(line: str) -> bool:
    """Whether it is an option or this very folder rather than a package: machines fetch from where their operator says,
    and find the modules of the folder as they are."""
    return line.startswith(("-", ".", "/"))


def _checked(text: str, where: str) -> str:
    try:
        return str(Requirement(text))
    except InvalidRequirement as error:
        raise BundleError(f"{where}: {text!r} is not a requirement ({_short(error)})", hint=mended(text)) from error


def mended(text: str) -> str:
    """A requirement that was probably meant."""
    name = re.match(r"\s*(?:pip3? install\s+|-p\s+)?([A-Za-z0-9][\w.-]*(?:\[[\w,.-]*\])?)\s*=?=?\s*v?(\d[\w.]*)?", text)
    if name is None:
        return "transformers==4.45.0"
    return f"{name[1]}=={name[2]}" if name[2] else name[1]


def _short(error: Exception) -> str:
    return str(error).splitlines()[0].strip()


def _inline(script: Path) -> Packages | None:
    if script.suffix != ".py":
        return None
    found = _INLINE.search(_text(script))
    if found is None:
        return None
    content = "\n".join(line[2:] for line in found["content"].splitlines())
    try:
        told = tomllib.loads(content).get("dependencies") or []
    except tomllib.TOMLDecodeError as error:
        raise BundleError(f"{script.name}, # /// script: is not TOML: {error}", path=script.name) from error
    return Packages(script.name, tuple(_checked(str(one), f"{script.name}, dependencies") for one in told))


def _project(file: Path) -> Packages | None:
    content = _toml(file)
    told = _table(content, "project").get("dependencies")
    if not isinstance(told, list):
        poetry = _table(content, "tool", "poetry").get("dependencies")
        left_out = (f"{file.name}: tool.poetry.dependencies (poetry export writes {REQUIREMENTS})",) if poetry else ()
        return Packages(file.name, (), left_out) if left_out else None
    return Packages(file.name, tuple(_checked(str(one), f"{file.name}, project.dependencies") for one in told))


def _locked(file: Path, project: Mapping[str, Any]) -> Packages:
    """What the project needs, as it was locked, with all that this needs. Its extras and groups are not installed."""
    rows = [one for one in _toml(file).get("package", ()) if isinstance(one, dict) and isinstance(one.get("name"), str)]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in rows:
        by_name.setdefault(one["name"], []).append(one)
    root = canonicalize_name(str(_table(project, "project").get("name", "")))
    pip: dict[str, None] = {}
    left_out: list[str] = []
    todo = [(one, "") for one in by_name.get(root, ())]
    seen: set[tuple[str, str, str]] = set()
    while todo:
        package, marker = todo.pop(0)
        for name, version, extras, condition in _needed(package):
            both = " and ".join(f"({one})" if " or " in one else one for one in (marker, condition) if one)
            for found in by_name.get(name, ()):
                key = name, str(found.get("version")), both
                if key in seen or (version and found.get("version") != version):
                    continue
                seen.add(key)
                text = _pinned(found, extras)
                if text is None:
                    left_out.append(f"{file.name}: {name}, which is not from an index")
                else:
                    pip[f"{text} ; {both}" if both else text] = None
                todo.extend([(found, both), *(({"dependencies": _extra(found, one)}, both) for one in extras)])
    plain = {one.partition(" ; ")[0] for one in pip if " ; " not in one}
    needed = tuple(one for one in pip if " ; " not in one or one.partition(" ; ")[0] not in plain)
    return Packages(file.name, needed, tuple(dict.fromkeys(left_out)))


def _needed(package: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    for one in package.get("dependencies") or ():
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            yield (
                one["name"],
                str(one.get("version") or ""),
                tuple(one.get("extra") or ()),
                str(one.get("marker") or ""),
            )


def _extra(package: Mapping[str, Any], name: str) -> list[Any]:
    return list(_table(package, "optional-dependencies").get(name) or ())


def _pinned(package: Mapping[str, Any], extras: tuple[str, ...]) -> str | None:
    source, name = package.get("source") or {}, package["name"]
    name = f"{name}[{','.join(extras)}]" if extras else name
    if "registry" in source and package.get("version"):
        return f"{name}=={package['version']}"
    address = source.get("git") or source.get("url")
    if not address:
        return None
    if "git" in source:
        bare, _, commit = str(address).partition("#")
        return f"{name} @ git+{bare.partition('?')[0]}{'@' + commit if commit else ''}"
    return f"{name} @ {address}"


def _table(content: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    here: Any = content
    for name in names:
        here = here.get(name) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(file))
    except tomllib.TOMLDecodeError as error:
        raise BundleError(f"{file.name}: is not TOML: {error}", path=file.name, hint="mend it") from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{file.name}: cannot be read as UTF-8 text ({error})", path=file.name) from error
