"""Templates as people write them: read, checked against the wire model, and every mistake told with its mend."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from allpass.errors import InvalidTemplate, Problem
from allpass.meant import of_the_job, place, values, written
from allpass.wire.template import Template

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Location = tuple["str | int", ...]
_MOST_BYTES = 1_000_000
_LONGEST_HINT = 200
_YAML_SUFFIXES = (".yaml", ".yml")


def load_template(source: str | os.PathLike[str] | Mapping[str, Any] | Template | None) -> Template:
    """A checked template from a JSON or YAML file, a dict, or None (an empty one).

    Raises InvalidTemplate with one problem per wrong field; nothing is ever dropped silently.
    """
    if source is None:
        return Template()
    if isinstance(source, Template):
        return source
    if isinstance(source, Mapping):
        return check_template(dict(source), "template")
    path = Path(source)
    return check_template(read_template(path), path.name)


def check_template(content: Any, source: str) -> Template:
    """`content` as a template; `source` names it in errors."""
    if not isinstance(content, dict):
        raise InvalidTemplate(
            source, [Problem("", f"{_show(content)} is not an object of fields", '{"gpu": {"count": 1}}')]
        )
    try:
        template = Template.model_validate(content)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=True)
        raise InvalidTemplate(source, [_problem(content, detail) for detail in details]) from error
    strange = next(_not_finite(content, ()), None)
    if strange is not None:
        raise InvalidTemplate(source, [Problem(_dotted(strange), "is not a finite number")])
    return template


def template_schema() -> dict[str, Any]:
    """The JSON Schema of `template.json`, for editors and other tools."""
    schema = Template.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def read_template(path: Path) -> Any:
    """As `read_document`, for what is no place for data."""
    try:
        size_bytes = path.stat().st_size
    except OSError:
        size_bytes = 0  # told in reading
    if size_bytes > _MOST_BYTES and path.is_file():
        problem = f"is {size_bytes / 10**6:.1f} MB, and a template has at most {_MOST_BYTES // 10**6} MB"
        raise InvalidTemplate(os.fspath(path), [Problem("", problem, "put data into the folder of the code")])
    return read_document(path)


def read_document(path: Path) -> Any:
    """The content of a JSON or YAML file, as the suffix says. Raises InvalidTemplate naming the line."""
    if path.is_dir():
        inside = next((os.fspath(path / one) for one in sorted(_documents_in(path))), None)
        raise InvalidTemplate(os.fspath(path), [Problem("", "is a folder, and a file is needed", inside)])
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        near = difflib.get_close_matches(path.name, _documents_in(path.parent), n=1)
        hint = os.fspath(path.with_name(near[0])) if near else "allpass schema template (shows what may be in it)"
        raise InvalidTemplate(os.fspath(path), [Problem("", "there is no such file", hint)]) from error
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem("", f"cannot be read as UTF-8 text ({error})", "save it as UTF-8")
        raise InvalidTemplate(os.fspath(path), [problem]) from error
    if not text.strip():
        raise InvalidTemplate(os.fspath(path), [Problem("", "is empty", '{"gpu": {"count": 1}}')])
    return _parse_yaml(text, path.name) if path.suffix.lower() in _YAML_SUFFIXES else _parse_json(text, path.name)


def _documents_in(folder: Path) -> list[str]:
    suffixes = (".json", *_YAML_SUFFIXES)
    try:
        return [one.name for one in folder.iterdir() if one.suffix.lower() in suffixes]
    except OSError:
        return []


def _parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        problem = Problem(f"line {error.lineno}, column {error.colno}", f"is not JSON: {error.msg}", _mend(text, name))
        raise InvalidTemplate(name, [problem]) from error
    except ValueError as error:
        raise InvalidTemplate(name, [Problem("", str(error))]) from error
    except RecursionError as error:
        raise InvalidTemplate(name, [Problem("", "is nested too deeply")]) from error


def _mend(text: str, name: str) -> str | None:
    """What people write that JSON does not have."""
    if not name.lower().endswith(".json"):
        return f"a template is JSON or YAML: {Path(name).stem}.json or {Path(name).stem}.yaml"
    if re.search(r"(^|\s)(//|#|/\*)", text):
        return f"JSON has no comments; YAML has: # in {Path(name).stem}.yaml"
    if re.search(r",\s*[}\]]", text):
        return "leave the comma before } or ] out"
    return "write names and texts in double quotes" if "'" in text else None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is given twice in one object")
    return dict(pairs)


def _parse_yaml(text: str, name: str) -> Any:
    import yaml  # rarely needed, and slow to load

    try:
        return yaml.safe_load(text)
    except RecursionError as error:
        raise InvalidTemplate(name, [Problem("", "is nested too deeply")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        message = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidTemplate(name, [Problem(where, f"is not YAML: {message}")]) from error


def _problem(content: dict[str, Any], detail: ErrorDetails) -> Problem:
    where: Location = tuple(detail["loc"])
    if detail["type"] == "extra_forbidden":
        return strange_field(where, detail["input"])
    if detail["type"] == "missing":
        return Problem(_dotted(where), "is missing", f'"{where[-1]}": ...')
    message = f"{_show(detail['input'])} {_phrase(detail)}"
    if detail["type"] == "value_error":  # raised by a validator of ours: its text says it all
        message = str(detail.get("ctx", {}).get("error", detail["msg"]))
    return Problem(_dotted(where), message, _suggestion(content, where, detail))


def strange_field(where: Location, given: Any) -> Problem:
    """Of a field that there is not: what was meant, as far as it can be told."""
    meant = _meant(where, given)
    if meant is not None:
        return meant
    names = _field_names(where[:-1])
    near = difflib.get_close_matches(str(where[-1]), names, n=1, cutoff=0.5)
    hint = f'"{near[0]}"' if near else "one of " + ", ".join(names)
    return Problem(_dotted(where), "there is no such field", hint)


def _meant(where: Location, given: Any) -> Problem | None:
    """What belongs to the job, or stands in another place."""
    name = str(where[-1])
    told = of_the_job(name, given) if len(where) == 1 else None
    if told is not None:
        return Problem(_dotted(where), f"{_show(given)}: {told[0]}", told[1])
    models = {"": tuple(Template.model_fields)} | {
        one: tuple(_field_names((one,))) for one in ("caps", "gpu", "training", "placement", "checkpoints")
    }
    path = place(name, where[:-1], models)
    if path is None:
        return None
    fitting = (one for one in (given, *values(path[-1], given)) if not _is_wrong(_nested(path, one), path))
    hint = written(path, next(fitting, ...))
    hint = hint if len(hint) <= _LONGEST_HINT else written(path, ...)
    return Problem(_dotted(where), f"there is no such field here; it is {'.'.join(path)}", hint)


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return dict(value)


def _phrase(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    kind = detail["type"]
    if kind == "greater_than_equal" and context.get("ge") == 1:
        return "is not a positive integer"
    if kind == "greater_than" and context.get("gt") == 0:
        return "is not a positive number"
    words = next((words for start, words in _PHRASES if kind.startswith(start)), "is refused: {msg}")
    return words.format(**{name: str(value).replace("'", "") for name, value in context.items()}, msg=detail["msg"])


_PHRASES = (
    ("greater_than_equal", "is less than {ge}"),
    ("greater_than", "is not more than {gt}"),
    ("less_than_equal", "is more than {le}"),
    ("literal_error", "is not one of {expected}"),
    ("string_pattern_mismatch", "has a character that is not allowed there"),
    ("string_too_long", "is longer than {max_length} characters"),
    ("string_too_short", "is empty"),
    ("too_long", "has more than {max_length} entries"),
    ("int_", "is not an integer"),
    ("float_", "is not a number"),
    ("finite_number", "is not a finite number"),
    ("bool_", "is neither true nor false"),
    ("string_", "is not text"),
    ("dict_", "is not an object of fields"),
    ("model_", "is not an object of fields"),
    ("list_", "is not a list"),
)


def _suggestion(content: dict[str, Any], where: Location, detail: ErrorDetails) -> str | None:
    """A value that would be accepted in this place: proposed from the error, then tried."""
    if not where or detail["type"] in ("too_long", "dict_too_long"):
        return None  # of several fields together, or of too many: which of them is for their owner to say
    for candidate in (*values(str(where[-1]), detail["input"]), *_candidates(detail)):
        changed = json.loads(json.dumps(content, default=str))
        if _put(changed, where, candidate) and not _is_wrong(changed, where):
            return f'"{where[-1]}": {json.dumps(candidate)}'
    return None


def _candidates(detail: ErrorDetails) -> Iterator[Any]:
    given, context = detail["input"], detail.get("ctx", {})
    number = given if isinstance(given, (int, float)) and not isinstance(given, bool) else None
    if isinstance(given, str):
        try:
            number = float(given.strip())
        except ValueError:
            number = None
    if number is not None and math.isfinite(number):
        yield abs(int(number)) if float(number).is_integer() else abs(number)
        yield max(1, round(abs(number)))
    if "le" in context:
        yield context["le"]
    options = [option.strip(" '") for option in str(context.get("expected", "")).replace(" or ", ",").split(",")]
    if isinstance(given, str):
        yield from difflib.get_close_matches(given.lower(), options, n=1, cutoff=0.3)
        yield given[: min(40, int(context["max_length"]))] if "max_length" in context else given
    yield from options if "expected" in context else ()
    yield from (True, 1) if detail["type"].startswith("bool") else (1, True)
    yield from ("name", {})


def _put(content: Any, where: Location, value: Any) -> bool:
    """Set the value in place; False if there is no such place."""
    if not where:
        return False  # fields that do not go together
    here = content
    for part in where[:-1]:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            return False
    if not isinstance(here, dict):
        return False
    here[where[-1]] = value
    return True


def _is_wrong(content: dict[str, Any], where: Location) -> bool:
    try:
        Template.model_validate(content)
    except ValidationError as error:
        return any(tuple(detail["loc"][: len(where)]) == where for detail in error.errors(include_url=False))
    return False


def _field_names(where: Location) -> list[str]:
    """The fields of the model at `where`."""
    model: type[BaseModel] = Template
    for part in where:
        annotation = model.model_fields[str(part)].annotation
        options = (annotation, *get_args(annotation))
        model = next(one for one in options if isinstance(one, type) and issubclass(one, BaseModel))
    return list(model.model_fields)


def _not_finite(value: Any, where: Location) -> Iterator[Location]:
    if isinstance(value, float) and not math.isfinite(value):
        yield where
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _not_finite(inner, (*where, name))
    if isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _not_finite(inner, (*where, index))


def _dotted(where: Location) -> str:
    return ".".join(str(part) for part in where)


def _show(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
