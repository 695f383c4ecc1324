"""Where the server is, and the key to it.

Looked for in this order; the first that is there wins:

1. the environment: ALLPASS_URL with ALLPASS_API_KEY
2. the context named by ALLPASS_CONTEXT, if that is set
3. a stack on this machine: `client.json` in ALLPASS_DATA_DIR, else `.allpass/client.json` in this folder or one above
4. the current context of `~/.config/allpass/contexts.json`, which `allpass login` writes, and `allpass up` where
   there is none yet

A local stack comes before a saved login, so that trying something out never spends money by accident.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from allpass.errors import ConfigurationError

DEFAULT_CONTEXT = "default"


@dataclass(frozen=True)
class Connection:
    """`origin` says in words where this was found. The key is not part of the repr."""

    url: str
    api_key: str = field(repr=False)
    origin: str


def find_connection(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Connection:
    """The connection to use, or ConfigurationError with what to run."""
    environment = os.environ if environ is None else environ
    here = Path.cwd() if folder is None else folder
    skipped: list[str] = []
    found = _from_environment(environment) or _from_named_context(environment)
    found = found or _from_local_stack(environment, here, skipped) or _from_current_context(environment)
    if found is None:
        raise ConfigurationError(
            "no Allpass server is configured" + "".join(f" ({reason})" for reason in skipped),
            hint="allpass up (starts one here), allpass login URL, or set ALLPASS_URL and ALLPASS_API_KEY",
        )
    return found


def checked_url(url: str, origin: str) -> str:
    """`url` without a trailing slash; ConfigurationError unless it is an http(s) address."""
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(
            f"{origin}: {url!r} is not the address of a server", hint="https://allpass.example.com"
        )
    return url.strip().rstrip("/")


@dataclass(frozen=True)
class Context:
    """A server that `allpass login` remembered. Its key stays in the file."""

    name: str
    url: str
    current: bool


def save_context(name: str, url: str, api_key: str, environ: Mapping[str, str] | None = None) -> Path:
    """Write the context and make it the current one. The file is readable by its owner only (0600)."""
    path = contexts_path(os.environ if environ is None else environ)
    contexts = {**_remembered(path), name: {"url": checked_url(url, "url"), "api_key": api_key}}
    return _write_contexts(path, name, contexts)


def remember_stack(name: str, url: str, api_key: str, environ: Mapping[str, str] | None = None) -> bool:
    """Write the context of a stack on this machine; whether it is the current one now. Another server that was logged
    in to stays the current one, and keeps its name: whoever tries something out must not lose the way back."""
    path = contexts_path(os.environ if environ is None else environ)
    contexts = _remembered(path)
    known = contexts.get(name)
    if known is not None and not _is_on_this_machine(known):
        raise ConfigurationError(f"{path}: the context {name!r} is another server", hint=f"--context {name}-stack")
    current = _read_contexts(path).get("current")
    chosen = current if current in contexts else name
    _write_contexts(path, chosen, {**contexts, name: {"url": checked_url(url, "url"), "api_key": api_key}})
    return bool(chosen == name)


def _is_on_this_machine(content: Any) -> bool:
    url = content.get("url") if isinstance(content, dict) else None
    return isinstance(url, str) and urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def list_contexts(environ: Mapping[str, str] | None = None) -> list[Context]:
    """What is remembered, by name."""
    path = contexts_path(os.environ if environ is None else environ)
    return [_described(path, name) for name in sorted(_remembered(path))]


def use_context(name: str, environ: Mapping[str, str] | None = None) -> Context:
    """Make this one the current one; ConfigurationError if there is none of that name."""
    path = contexts_path(os.environ if environ is None else environ)
    _context(path, name)
    _write_contexts(path, name, _remembered(path))
    return _described(path, name)


def remove_context(name: str, environ: Mapping[str, str] | None = None) -> Context:
    """Forget this one and its key; it as it was. If it was the current one, none is."""
    path = contexts_path(os.environ if environ is None else environ)
    _context(path, name)
    gone = _described(path, name)
    current = _read_contexts(path).get("current")
    rest = {other: content for other, content in _remembered(path).items() if other != name}
    _write_contexts(path, None if gone.current else current, rest)
    return gone


def contexts_path(environ: Mapping[str, str]) -> Path:
    """Where `allpass login` keeps what it was told."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "allpass" / "contexts.json"


def _from_environment(environ: Mapping[str, str]) -> Connection | None:
    url, key = environ.get("ALLPASS_URL"), environ.get("ALLPASS_API_KEY")
    if not url:
        return None
    if not key:
        raise ConfigurationError("ALLPASS_URL is set, but ALLPASS_API_KEY is not", hint="export ALLPASS_API_KEY=...")
    return Connection(checked_url(url, "ALLPASS_URL"), key, "ALLPASS_URL")


def _from_named_context(environ: Mapping[str, str]) -> Connection | None:
    name = environ.get("ALLPASS_CONTEXT")
    return _context(contexts_path(environ), name) if name else None


def _from_current_context(environ: Mapping[str, str]) -> Connection | None:
    path = contexts_path(environ)
    name = _read_contexts(path).get("current")
    return _context(path, str(name)) if name else None


def _context(path: Path, name: str) -> Connection:
    contexts = _remembered(path)
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise ConfigurationError(
            f"{path}: there is no context {name!r} (known: {known})", hint=f"allpass login URL --context {name}"
        )
    return _connection(contexts[name], f"{path}, context {name}")


def _described(path: Path, name: str) -> Context:
    return Context(name, _context(path, name).url, _read_contexts(path).get("current") == name)


def _remembered(path: Path) -> dict[str, Any]:
    contexts = _read_contexts(path).get("contexts", {})
    if not isinstance(contexts, dict):
        raise ConfigurationError(f"{path}: contexts is not an object", hint="remove it and log in again")
    return contexts


def _write_contexts(path: Path, current: str | None, contexts: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")  # made with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"current": current, "contexts": contexts}, file, indent=2)
            file.write("\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _read_contexts(path: Path) -> dict[str, Any]:
    return _read_object(path) if path.is_file() else {}


def _from_local_stack(environ: Mapping[str, str], folder: Path, skipped: list[str]) -> Connection | None:
    data_dir = environ.get("ALLPASS_DATA_DIR")
    folders = [Path(data_dir)] if data_dir else [one / ".allpass" for one in (folder, *folder.parents)]
    for candidate in (one / "client.json" for one in folders):
        if candidate.is_file():
            if _is_ours(candidate):
                return _connection(_read_object(candidate), str(candidate))
            skipped.append(f"{candidate} was left alone: it belongs to another user")
    return None


def _is_ours(path: Path) -> bool:
    """A file that somebody else put into a shared folder must not redirect our code and keys. Where files have no owner
    that can be asked for (Windows), only those below our own home are taken for ours."""
    if hasattr(os, "getuid"):
        return path.stat().st_uid == os.getuid()
    return path.resolve().is_relative_to(Path.home().resolve())


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read ({error})", hint="remove it and log in again") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: is not a JSON object", hint="remove it and log in again")
    return content


def _connection(content: Any, origin: str) -> Connection:
    url, key = (content.get("url"), content.get("api_key")) if isinstance(content, dict) else (None, None)
    if not isinstance(url, str) or not isinstance(key, str) or not key:
        raise ConfigurationError(f'{origin}: needs "url" and "api_key"', hint="allpass login URL")
    return Connection(checked_url(url, origin), key, origin)
