"""Core values as plain JSON and back: for stored ticks, and to replay recorded snapshots.

One scheme for every frozen dataclass of the core, driven by its declared types. A value is written with all its
fields, defaults included, so that a record keeps its meaning when a default changes; sets are sorted and keys too, so
that equal values give equal bytes. Money is its micro-dollars. A field that a record lacks (it is older than the
field) takes its default.

What was written is read in two ways. A record (a snapshot to decide again, a trace) is read by `decode`: a field that
the value does not have is refused rather than dropped, for a decision on half of what was seen is another decision. A
row outlives the release that wrote it and is read by `decode_row`: fields of a newer release are ignored, and its words
are read as `app.core.foreign` says, so that whoever goes back to this release can go on, and end what is rented.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from app.core.foreign import read_as
from app.core.model.money import Money
from app.errors import InvalidInput

T = TypeVar("T")
_Decoder = Callable[[Any, str], Any]


def encode(value: object) -> Any:
    """As dicts, lists, strings, numbers, booleans and None. Raises TypeError for anything that is no core value."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Money):
        return value.micros
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no place in a recorded value")


def decode(kind: type[T], data: Any) -> T:
    """The value of that dataclass which `encode` turned into `data`.

    Raises InvalidInput naming the place (`jobs[2].state`), what is there, and what would be accepted.
    """
    return _decode(kind, data, _Reading.RECORD)


def decode_row(kind: type[T], data: Any) -> T:
    """Like `decode`, of a row that a newer release may have written. Raises InvalidInput for what cannot be read."""
    return _decode(kind, data, _Reading.ROW)


def dumps(value: object) -> bytes:
    """Canonical JSON: equal values give equal bytes. A number that JSON cannot hold (NaN) is a ValueError."""
    text = json.dumps(encode(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def loads(kind: type[T], data: bytes | str) -> T:
    """The value written by `dumps`. Raises InvalidInput, also for what is no JSON."""
    try:
        parsed = json.loads(data)
    except ValueError as error:
        raise InvalidInput(f"not JSON: {error}") from error
    return decode(kind, parsed)


def digest(value: object) -> str:
    """sha256 in hex of the canonical bytes: two equal digests, two equal values."""
    return hashlib.sha256(dumps(value)).hexdigest()


class _Reading(Enum):
    RECORD = "record"
    ROW = "row"


def _decode(kind: type[T], data: Any, reading: _Reading) -> T:
    declared: Any = kind
    value: T = _decoder(declared, reading)(data, "")
    return value


@cache
def _decoder(kind: Any, reading: _Reading) -> _Decoder:
    """A function from plain data and its path to a value of this declared type."""
    if get_origin(kind) is not None:
        return _generic(get_origin(kind), get_args(kind), reading)
    if kind is Money:
        return lambda data, path: Money(_integer(data, path))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _word(kind) if reading is _Reading.ROW else _member(kind)
    if is_dataclass(kind):
        return _dataclass(kind, reading)
    scalars: dict[Any, _Decoder] = {bool: _boolean, int: _integer, float: _number, str: _text}
    if kind not in scalars:
        raise TypeError(f"{kind} has no place in a recorded value")
    return scalars[kind]


def _generic(origin: Any, arguments: tuple[Any, ...], reading: _Reading) -> _Decoder:
    if origin in (Union, UnionType):
        return _union(arguments, reading)
    if origin is tuple:
        return _sequence(arguments[0], reading) if arguments[-1] is Ellipsis else _record(arguments, reading)
    if origin is frozenset:
        return _set(arguments[0], reading)
    raise TypeError(f"{origin} has no place in a recorded value")


def _dataclass(kind: Any, reading: _Reading) -> _Decoder:
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}

    def build(data: Any, path: str) -> Any:
        if not isinstance(data, dict):
            raise _refused(data, path, f"an object ({kind.__name__})")
        for name in sorted(set(data) - set(known)) if reading is _Reading.RECORD else ():
            raise InvalidInput(f"{kind.__name__} has no such field", param=_join(path, name))
        for name, field in known.items():
            if name not in data and _is_required(field):
                raise InvalidInput(f"missing: every {kind.__name__} has one", param=_join(path, name))
        present = [name for name in known if name in data]
        return kind(**{name: _decoder(hints[name], reading)(data[name], _join(path, name)) for name in present})

    return build


def _union(kinds: tuple[Any, ...], reading: _Reading) -> _Decoder:
    """`X | None`, or dataclasses that are told apart by the default of their `kind` field. Of one of another kind
    nothing is known, in a row neither: it is refused."""
    others: list[Any] = [kind for kind in kinds if kind is not NoneType]
    optional = len(others) < len(kinds)
    by_kind: dict[Any, Any] = {
        field.default: kind for kind in others if is_dataclass(kind) for field in fields(kind) if field.name == "kind"
    }

    def build(data: Any, path: str) -> Any:
        if data is None and optional:
            return None
        if len(others) == 1:
            return _decoder(others[0], reading)(data, path)
        found = by_kind.get(str(data.get("kind"))) if isinstance(data, dict) else None
        if found is None:
            raise _refused(data, path, f"an object with kind one of: {', '.join(sorted(map(str, by_kind)))}")
        return _decoder(found, reading)(data, path)

    return build


def _sequence(item: Any, reading: _Reading) -> _Decoder:
    def build(data: Any, path: str) -> Any:
        one = _decoder(item, reading)
        return tuple(one(value, f"{path}[{place}]") for place, value in enumerate(_items(data, path)))

    return build


def _record(kinds: tuple[Any, ...], reading: _Reading) -> _Decoder:
    def build(data: Any, path: str) -> Any:
        items = _items(data, path)
        if len(items) != len(kinds):
            raise _refused(data, path, f"a list of {len(kinds)}")
        pairs = enumerate(zip(kinds, items, strict=True))
        return tuple(_decoder(kind, reading)(value, f"{path}[{place}]") for place, (kind, value) in pairs)

    return build


def _set(item: Any, reading: _Reading) -> _Decoder:
    return lambda data, path: frozenset(_sequence(item, reading)(data, path))


def _member(kind: type[Enum]) -> _Decoder:
    def build(data: Any, path: str) -> Any:
        try:
            return kind(data)
        except ValueError:
            accepted = ", ".join(str(member.value) for member in kind)
            raise _refused(data, path, f"one of: {accepted}") from None

    return build


def _word(kind: type[Enum]) -> _Decoder:
    def build(data: Any, path: str) -> Any:
        try:
            return read_as(kind, data)
        except InvalidInput as error:
            raise InvalidInput(error.message, param=path or None) from None

    return build


def _items(data: Any, path: str) -> list[Any]:
    if not isinstance(data, list):
        raise _refused(data, path, "a list")
    return data


def _boolean(data: Any, path: str) -> bool:
    if not isinstance(data, bool):
        raise _refused(data, path, "true or false")
    return data


def _integer(data: Any, path: str) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise _refused(data, path, "a whole number")
    return data


def _number(data: Any, path: str) -> float:
    if not isinstance(data, int | float) or isinstance(data, bool):
        raise _refused(data, path, "a number")
    return float(data)


def _text(data: Any, path: str) -> str:
    if not isinstance(data, str):
        raise _refused(data, path, "text")
    return data


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _refused(data: Any, path: str, accepted: str) -> InvalidInput:
    return InvalidInput(f"{data!r:.80} is not {accepted}", param=path or None)
