"""Options of commands that submit a job, as the fields of a template that they stand for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli.faults import WRONG_USAGE, CommandFailed

if TYPE_CHECKING:
    from allpass.wire.template import Template

TemplateFile = Annotated[Path | None, typer.Option("--template", "-t", help="JSON or YAML; see schema template.")]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", metavar="TYPE[:N]", help="H100, A100-80GB:2, 4 for any four, A100:1-8 for 1 up to 8."),
]
Elastic = Annotated[
    bool,
    typer.Option("--elastic", help="Lend GPUs, all but one, to jobs that wait for them, until they end."),
]
ResizeBy = Annotated[
    str | None,
    typer.Option(
        "--resize-by", metavar="restart", help="Change its GPUs by restarting it from what it saves (not exact)."
    ),
]
Spot = Annotated[
    bool,
    typer.Option("--spot", help="Use GPUs that no guaranteed job wants; save and leave when one needs them."),
]
Guaranteed = Annotated[
    bool,
    typer.Option("--guaranteed", help="Never made to leave for another job, whatever the project's default is."),
]
Nodes = Annotated[
    int | None, typer.Option("--nodes", min=1, max=64, help="Run on so many machines at once, each with --gpu.")
]
MostPerSwitch = Annotated[
    int | None,
    typer.Option("--most-per-switch", min=1, max=64, help="Of --nodes, at most so many under one network switch."),
]
MostPerRack = Annotated[
    int | None, typer.Option("--most-per-rack", min=1, max=64, help="Of --nodes, at most so many in one rack.")
]
Cpus = Annotated[int | None, typer.Option("--cpus", help="CPUs that the job needs.")]
Memory = Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Main memory, e.g. 64GB.")]
Variables = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="KEY=VALUE", help="Environment variable; no secrets. Repeat.")
]
MaxCost = Annotated[str | None, typer.Option("--max-cost", metavar="DOLLARS", help="Most it may cost.")]
MaxDuration = Annotated[str | None, typer.Option("--max-duration", help="Longest it may take: 6h, 90m.")]
MaxHourly = Annotated[
    str | None,
    typer.Option("--max-hourly", metavar="DOLLARS", help="Most that its GPUs may cost per hour; else it waits."),
]
MaxWait = Annotated[str | None, typer.Option("--max-wait", help="Longest until it starts, at any price then: 2h, 30m.")]
Retries = Annotated[
    str | None, typer.Option("--retries", metavar="NUMBER", help="How often it is begun again when its code fails.")
]
Secrets = Annotated[
    list[str] | None, typer.Option("--secret", metavar="NAME", help="Secret for the script's environment; repeat.")
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="PATH", help="Keep this of the working folder, whatever its size; repeat."),
]
Checkpoints = Annotated[
    str | None,
    typer.Option("--checkpoints", metavar="PATTERN", help="Where the script keeps its own: 'out/checkpoint-*'."),
]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="key=value, to find it again.")]

_RANGE = r"(?:\s*-\s*(?P<{}>\d+))?"
_GPU = re.compile(
    rf"(?:(?P<type>[A-Za-z][^:]*?)(?:[:x](?P<count>-?\d+){_RANGE.format('most')})?"
    rf"|(?P<alone>\d+){_RANGE.format('most_alone')}(?:x(?P<of>[A-Za-z].*))?)"
)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]i?B?)?", re.IGNORECASE)
_GB = {"k": 1e-6, "m": 1e-3, "g": 1.0, "t": 1e3, "ki": 1024e-9, "mi": 1024**2 * 1e-9, "gi": 1024**3 * 1e-9,
       "ti": 1024**4 * 1e-9}  # fmt: skip
_MOST_MEMORY_GB = 8192
_SHORTEST_S = 60  # a bare number below is one whose unit was forgotten
_ANY = frozenset({"any", "gpu"})


def template_of(
    path: Path | None,
    *,
    gpu: str | None = None,
    elastic: bool = False,
    resize_by: str | None = None,
    spot: bool = False,
    guaranteed: bool = False,
    nodes: int | None = None,
    most_per_switch: int | None = None,
    most_per_rack: int | None = None,
    cpus: int | None = None,
    memory: str | None = None,
    env: Sequence[str] | None = None,
    image: str | None = None,
    max_cost: str | None = None,
    max_duration: str | None = None,
    max_hourly: str | None = None,
    max_wait: str | None = None,
    retries: str | None = None,
    labels: Sequence[str] | None = None,
    secrets: Sequence[str] | None = None,
    command: Sequence[str] = (),
    keep: Sequence[str] | None = None,
    checkpoints: str | None = None,
) -> Template:
    """The template file with what options add to it; an option comes before the file."""
    from allpass.submission import with_secrets
    from allpass.templates import check_template, read_template

    content = read_template(path) if path is not None else {}
    if isinstance(content, dict) and isinstance(content.get("checkpoints"), str):
        content = {**content, "checkpoints": {"folders": content["checkpoints"]}}
    if not isinstance(content, dict):
        return check_template(content, path.name if path is not None else "")
    variables = pairs("--env", env or [], example="WANDB_MODE=offline")
    _check_variables(variables)
    caps: dict[str, Any] = {} if max_cost is None else {"max_cost_usd": dollars("--max-cost", max_cost)}
    if max_duration is not None:
        caps["max_duration_s"] = seconds("--max-duration", max_duration)
    if max_hourly is not None:
        caps["max_hourly_usd"] = dollars("--max-hourly", max_hourly)
    if max_wait is not None:
        caps["max_wait_s"] = seconds("--max-wait", max_wait)
    apart = {"most_per_switch": most_per_switch, "most_per_rack": most_per_rack}
    for name, fields in (
        ("placement", {name: most for name, most in apart.items() if most is not None}),
        ("gpu", {} if gpu is None else gpu_fields(gpu)),
        ("caps", caps),
        ("checkpoints", {} if checkpoints is None else {"folders": checkpoints}),
        ("env", variables),
        ("labels", pairs("--label", labels or [], example="team=nlp")),
    ):
        if fields:
            content = {**content, name: {**_object(content.get(name)), **fields}}
    plain: dict[str, Any] = {"cpus": cpus, "memory_gb": None if memory is None else gigabytes(memory), "image": image}
    plain["retries"] = None if retries is None else times("--retries", retries)
    plain["elastic"] = True if elastic else None  # a file may have said so
    plain["resize_by"] = resize_by
    plain["priority_class"] = _class(spot=spot, guaranteed=guaranteed)
    plain["nodes"] = nodes
    content = {**content, **{name: value for name, value in plain.items() if value is not None}}
    if command:
        content = {**content, "command": list(command)}
    if keep:
        content = {**content, "outputs": [*(content.get("outputs") or []), *keep]}
    return with_secrets(check_template(content, path.name if path is not None else "options"), secrets)


def pairs(option: str, texts: Sequence[str], *, twice: str | None = None, example: str = "lr=0.1") -> dict[str, str]:
    """KEY=VALUE words, each key once; `twice` is the advice where one is given again."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise CommandFailed(f"{option}: {text!r} is not key=value", hint=f"{option} {example}", code=WRONG_USAGE)
        if key.strip() in found:
            raise CommandFailed(f"{option}: {key.strip()!r} is given twice", hint=twice, code=WRONG_USAGE)
        found[key.strip()] = value
    return found


def gpu_fields(text: str) -> dict[str, Any]:
    """H100, H100:2, 2xH100, 4 for any four, and H100:1-8 for one up to eight."""
    found = _GPU.fullmatch(text.strip())
    if found is None:
        raise CommandFailed(f"--gpu: {text!r} is not a type, or TYPE:COUNT", hint="--gpu H100:2", code=WRONG_USAGE)
    if "," in text:
        raise CommandFailed(
            f"--gpu: {text!r} names several; a job asks for one type, or for any with enough memory",
            hint='--gpu H100, or "gpu": {"memory_gb": 80} in its template',
            code=WRONG_USAGE,
        )
    gpu_type, count = found["type"] or found["of"], int(found["count"] or found["alone"] or 1)
    if not 1 <= count <= 64:
        raise CommandFailed(f"--gpu: {count} is not from 1 to 64 GPUs", hint="--gpu H100:2", code=WRONG_USAGE)
    named = {} if gpu_type is None or gpu_type.lower() in _ANY else {"type": gpu_type.strip()}
    told = found["most"] or found["most_alone"]
    return {**named, "count": count, "max_count": None if told is None else _most(text, count, int(told))}


def _most(text: str, count: int, most: int) -> int:
    if most < count:
        of = f"{most}-{count}"
        raise CommandFailed(f"--gpu: {text!r} ends below where it begins", hint=f"--gpu H100:{of}", code=WRONG_USAGE)
    if most > 64:
        raise CommandFailed(f"--gpu: {most} is not from 1 to 64 GPUs", hint=f"--gpu H100:{count}-8", code=WRONG_USAGE)
    return most


def gigabytes(text: str) -> float:
    """64GB, 64GiB, 512MB; a bare number is in gigabytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise CommandFailed(f"--memory: {text!r} is not a size", hint="--memory 64GB", code=WRONG_USAGE)
    unit = (found["unit"] or "g").lower().removesuffix("b")
    size_gb = float(found["number"]) * _GB[unit]
    if not 0 < size_gb <= _MOST_MEMORY_GB:
        raise CommandFailed(
            f"--memory: {text!r} is not more than nothing and at most {_MOST_MEMORY_GB} GB",
            hint="--memory 64GB",
            code=WRONG_USAGE,
        )
    return size_gb


def dollars(option: str, text: str) -> float:
    """12, 12.50, $12: an amount that is more than nothing."""
    plain = text.strip().lower().removeprefix("$").removesuffix("usd").removesuffix("$").strip().replace(",", "")
    try:
        amount = float(plain)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        wrong = "is not more than nothing" if amount <= 0 else "is not an amount in dollars"
        raise CommandFailed(f"{option}: {text!r} {wrong}", hint=f"{option} 12.50", code=WRONG_USAGE)
    return amount


def seconds(option: str, text: str, *, least_bare_s: int = _SHORTEST_S) -> int:
    """A duration as deadlines are written, or seconds; rounded up, so that a limit is never shorter than was meant. A
    number without a unit that is less than `least_bare_s` is refused: its unit was forgotten."""
    from datetime import datetime, timezone

    from allpass.wire.deadlines import parse_deadline

    if text.strip().isdigit() and int(text) < least_bare_s:
        raise CommandFailed(
            f"{option}: {text!r} has no unit",
            hint=f"{option} {int(text) or 8}h, or {int(text) or 8}s",
            code=WRONG_USAGE,
        )
    if text.strip().isdigit():
        return int(text)
    now = datetime.now(timezone.utc)
    refused = CommandFailed(f"{option}: {text!r} is not a duration", hint=f"{option} 8h", code=WRONG_USAGE)
    if not text.strip()[-1:].isalpha() or text.strip()[-1:] in "zZ":  # an instant
        raise refused
    try:
        return int(-(-(parse_deadline(text, now=now) - now).total_seconds() // 1))
    except ValueError:
        raise refused from None


def times(option: str, text: str) -> int:
    """A number of times, 0 for never."""
    from allpass.wire.base import MOST_RETRIES

    if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or int(text) > MOST_RETRIES:
        raise CommandFailed(
            f"{option}: {text!r} is not a number from 0 to {MOST_RETRIES}", hint=f"{option} 2", code=WRONG_USAGE
        )
    return int(text)


def _class(*, spot: bool, guaranteed: bool) -> str | None:
    """None: what a file says, or the project's default."""
    if spot and guaranteed:
        raise CommandFailed(
            "--spot and --guaranteed contradict each other: a job leaves its GPUs to others, or it does not",
            hint="name one of them, or neither for the project's default",
            code=WRONG_USAGE,
        )
    return "spot" if spot else "guaranteed" if guaranteed else None


def _check_variables(variables: Mapping[str, str]) -> None:
    from allpass.wire.environment import looks_secret, variable_problem

    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise CommandFailed(
                f"--env: {name!r} is not the name of a variable: letters, digits and _, and no digit first",
                hint="--env WANDB_MODE=offline",
                code=WRONG_USAGE,
            )
        if looks_secret(name, value):
            raise CommandFailed(
                f"--env: {name!r} looks like a secret, and variables are stored and shown as they are",
                hint=f"allpass secret set {name}, then --secret {name}",
                code=WRONG_USAGE,
            )
        problem = variable_problem(name, value)
        if problem is not None:
            raise CommandFailed(f"--env: {problem}", hint="--env WANDB_MODE=offline", code=WRONG_USAGE)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
