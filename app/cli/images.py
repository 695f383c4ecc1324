"""`allpass images`: the images that rented machines run. Needs no server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import make_group

if TYPE_CHECKING:
    from app.core.images.facts import ImageFacts
    from app.core.images.fitness import ImageFinding
    from app.settings import Settings

images = make_group()

Engine = Annotated[str | None, typer.Option("--engine", help="docker, podman or nerdctl; default: the first in PATH.")]
_LOCAL = "allpass/node:latest"
_SETTING = "ALLPASS_NODE_IMAGE"


@images.callback()
def group() -> None:
    """Example: allpass images check

    Check, build and push the images that rented machines run.
    """


@images.command("check")
def check(
    image: Annotated[str | None, typer.Argument(help="Default: the one that machines are rented with.")] = None,
    bandwidth_mbps: Annotated[
        int | None, typer.Option("--bandwidth-mbps", min=1, help="A machine's line; default: what hosts must have.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object with all that was found.")] = False,
) -> None:
    """Example: allpass images check pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime

    Ask an image's registry what it is, and say what would go wrong with it where. Some kilobytes are fetched, nothing
    is run or rented. A private image needs its login in ALLPASS_REGISTRY_LOGINS. Fails when no machine could start
    with it.
    """
    from app.core.images.fitness import Circumstances, judge
    from app.core.images.reference import parse_image
    from app.registry.client import Registry

    settings = _settings()
    name = settings.node_image if image is None else image
    reference = parse_image(name)
    login = settings.logins.of(reference)
    (vast,) = (one.section for one in settings.providers if one.name == "vast")
    around = Circumstances(
        bandwidth_mbps or max(1, getattr(vast, "inet_down_mbps", 1)),
        {"vast": getattr(vast, "startup_deadline_s", 0.0)},
        settings.promised_cuda,
    )
    with Registry(reference.registry, login) as registry:
        facts = _told(lambda: registry.look(reference))
    found = judge(facts, around)
    access = "public" if login is None else f"with the login of {login.user}"
    if as_json:
        screen.print_json(_as_object(name, facts, found, around.bandwidth_mbps, access))
    else:
        _show(name, facts, found, around.bandwidth_mbps, access)
    refused = [one for one in found if one.severity == "refused"]
    if refused:
        raise CommandFailed(f"machines cannot be rented with {name}: {refused[0].text}")


@images.command("build")
def build(
    image: Annotated[str, typer.Argument(help="The name that it gets.")] = _LOCAL,
    base: Annotated[str, typer.Option("--from", help="An image with Python 3.9 or newer.")] = "python:3.11-slim",
    packages: Annotated[list[str] | None, typer.Option("--package", help="For pip; may be given again.")] = None,
    index: Annotated[str, typer.Option("--index", help="Where pip looks for them instead.")] = "",
    platform: Annotated[str, typer.Option("--platform", help="linux/amd64 or linux/arm64.")] = "linux/amd64",
    engine: Engine = None,
) -> None:
    """Example: allpass images build registry.example.com/team/node:1 --package torch==2.13.0 --package transformers

    Build a node image of your own, with what most of your jobs need. Takes docker, podman or nerdctl.
    """
    from app.core.images.reference import parse_image
    from app.registry import engine as engines

    parse_image(image)
    arguments = [("PYTHON_IMAGE", base), ("PACKAGES", " ".join(packages or ())), ("PACKAGES_INDEX", index)]
    program = _told(lambda: engines.engine_program(engine))
    code = engines.build(program, image, platform=platform, arguments=[one for one in arguments if one[1]])
    if code:
        raise CommandFailed(f"the build has failed (exit code {code}); what {program} says is above")
    screen.say(f"built {image}; next: allpass images push {image}")


@images.command("push")
def push(
    image: Annotated[str, typer.Argument(help="With the registry that it goes to.")], engine: Engine = None
) -> None:
    """Example: allpass images push registry.example.com/team/node:1

    Push an image to its registry, with the login that the container engine has (docker login).
    """
    from app.core.images.reference import parse_image
    from app.registry import engine as engines

    reference = parse_image(image)
    program = _told(lambda: engines.engine_program(engine))
    code = engines.push(program, reference, image)
    if code:
        hint = f"{program} login {reference.registry}"
        raise CommandFailed(f"the push has failed (exit code {code}); what {program} says is above", hint=hint)
    screen.say(f"pushed; next: allpass images check {image}, then {_SETTING}={image} for the server")


def _settings() -> Settings:
    """Those of the environment. What only a server needs is made up."""
    from pydantic import SecretStr, ValidationError

    from app.settings import Settings as AllSettings

    unused = SecretStr("not used by this command, which has no server")
    try:
        return AllSettings(
            database_url=unused, secret_key=unused, objects_signing_key=unused, objects_store="directory"
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        raise CommandFailed(f"setting ALLPASS_{name}: {first['msg']}", code=WRONG_USAGE) from None


def _told(call: Any) -> Any:
    """What the call gives; its error in the words of the command line."""
    from app.errors import AllpassError, InvalidInput

    try:
        return call()
    except InvalidInput:
        raise
    except AllpassError as error:
        raise CommandFailed(error.message) from None


def _show(name: str, facts: ImageFacts, found: list[ImageFinding], bandwidth_mbps: int, access: str) -> None:
    from app.core.images.facts import contents_of
    from app.core.images.fitness import download_s

    contents = contents_of(facts)
    size = f"{facts.download_bytes / 1e9:.2f} GB, {download_s(facts, bandwidth_mbps):.0f} s at {bandwidth_mbps} Mbit/s"
    rows = [
        ("image", name),
        ("access", access),
        ("digest", facts.digest),
        ("platforms", ", ".join(facts.platforms)),
        ("download", size),
        ("python", _version(contents.python)),
        ("pip", "likely" if contents.has_pip else "not known"),
        ("torch", contents.torch or "not known"),
        ("cuda", _version(contents.cuda)),
        ("shell", "likely" if contents.has_shell else "not known"),
        ("user", facts.user or "root"),
        ("entry point", " ".join(facts.entrypoint) or "none"),
    ]
    screen.print_facts(rows)
    for one in found:
        where = f"{one.where}: " if one.where else ""
        colour = "red" if one.severity == "refused" else "yellow"
        typer.echo(f"{screen.paint(one.severity, colour)}  {screen.printable(where + one.text)}")
    if not found:
        typer.echo(f"{screen.paint('good', 'green')}  nothing speaks against it")


def _version(version: tuple[int, ...] | None) -> str:
    if version is None:
        return "not known"
    return ".".join(map(str, version)) or "likely"


def _as_object(
    name: str, facts: ImageFacts, found: list[ImageFinding], bandwidth_mbps: int, access: str
) -> dict[str, Any]:
    from dataclasses import asdict

    from app.core.images.facts import contents_of
    from app.core.images.fitness import download_s

    return {
        "image": name,
        "access": access,
        "digest": facts.digest,
        "platforms": list(facts.platforms),
        "download_bytes": facts.download_bytes,
        "download_s": round(download_s(facts, bandwidth_mbps), 1),
        "user": facts.user or "root",
        "entrypoint": list(facts.entrypoint),
        "environment": dict(facts.environment),
        **{key: _plain(value) for key, value in asdict(contents_of(facts)).items()},
        "findings": [asdict(one) for one in found],
    }


def _plain(value: Any) -> Any:
    """A version as text."""
    return ".".join(map(str, value)) if isinstance(value, tuple) else value
