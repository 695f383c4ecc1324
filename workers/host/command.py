"""`allpass node ...` on the host itself, and what `join.sh` runs."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import shutil
import socket
import sys
import time
from pathlib import Path

from workers.agent.transport import Transport
from workers.host import service
from workers.host.daemon import Daemon
from workers.host.facts import (
    CPUS,
    CPUS_FOR_ALL,
    GPUS,
    check_usable,
    describe,
    facts_of,
    hardware,
    usual_keep_free_bytes,
)
from workers.host.place import HostError, HostPlace, Member
from workers.host.talk import HostApi, join
from workers.machines.processes import boot_id

_GB = 10**9
_LEAVE_LOOK_S = 0.5


def main(argv: list[str]) -> int:
    """0; 1 with one sentence on standard error; 2 for a command line that is none."""
    options = _parser().parse_args(argv)
    place = HostPlace.usual() if options.root is None else HostPlace(options.root.absolute())
    try:
        if place.is_copied(hardware()):
            _disown(place, joins=options.does is _join)
        code: int = options.does(place, options)
    except HostError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="allpass-host", description="Make this host one of a pool of Allpass.")
    parser.add_argument("--root", type=Path, help="the folder to work in (default: /var/lib/allpass-host as root)")
    commands = parser.add_subparsers(required=True)
    joins = commands.add_parser("join", help="join a pool with its token, which is read from standard input")
    joins.add_argument("url", help="address of the service")
    joins.add_argument("--token-file", type=Path, help="a file with the token, in place of standard input")
    joins.add_argument("--name", default=socket.gethostname(), help="what the pool shows (default: the host's name)")
    joins.add_argument("--label", action="append", default=[], help="KEY=VALUE, as switch=leaf-3; repeat")
    joins.add_argument("--cpu", action="store_true", help="give this host's processors, for jobs that need no GPU")
    joins.add_argument("--for-all", action="store_true", help="with --cpu: also for jobs that name no GPU")
    joins.add_argument("--keep-free-gb", type=float, help="of the disk (default: a twentieth, 5 GB at least)")
    joins.add_argument("--nvidia-smi", default="", help=argparse.SUPPRESS)
    joins.add_argument("--no-start", action="store_true", help="only join: somebody else runs `allpass-host run`")
    joins.set_defaults(does=_join)
    runs = commands.add_parser("run", help="work as a member, in the foreground")
    runs.add_argument("--with-machines", action="store_true", help="what runs here ends with this process")
    runs.set_defaults(does=_run)
    leaves = commands.add_parser("leave", help="have what runs here move away, then leave nothing behind")
    leaves.add_argument("--no-wait", action="store_true", help="return at once")
    leaves.set_defaults(does=_leave)
    commands.add_parser("status", help="what this host is to its pool").set_defaults(does=_status)
    return parser


def _disown(place: HostPlace, *, joins: bool) -> None:
    """This disk says that we are a member which is another machine: as that one we would end what runs there."""
    member = place.member()
    assert member is not None
    if not joins:
        raise HostError(
            f"this disk was copied from the one of {member.host_id} in pool {member.pool}, which is another machine: "
            "`allpass node join` makes this one a host of its own"
        )
    place.forget()


def _join(place: HostPlace, options: argparse.Namespace) -> int:
    url = options.url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise HostError(f"{options.url!r} is no address: it begins with http:// or https://")
    if place.member() is not None:
        raise HostError(f"this host is in pool {place.member().pool} already: allpass node leave")  # type: ignore[union-attr]
    labels = _labels(options.label)
    place.prepare()
    token = _token(options.token_file)
    keep = usual_keep_free_bytes(place.root) if options.keep_free_gb is None else int(options.keep_free_gb * _GB)
    gives = (CPUS_FOR_ALL if options.for_all else CPUS) if options.cpu else GPUS
    facts = facts_of(place.root, gives, options.nvidia_smi, keep)
    check_usable(facts, gives)
    name = options.name[:200] or "host"
    told = join(HostApi(url, token, Transport()), url, place.nonce(), name, boot_id(), facts, labels)
    member = Member(
        url, told["host_id"], told["host_token"], told["pool"], gives, keep, options.nvidia_smi, hardware=hardware()
    )
    place.set_member(member)
    print(f"joined pool {member.pool} as {member.host_id}: {describe(member, facts)}")
    if not options.no_start:
        print(service.start(place))
    return 0


def _labels(texts: list[str]) -> dict[str, str]:
    """What the owner says of this host; the service checks what may be in it."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip() or not value.strip():
            raise HostError(f"--label: {text!r:.80} is not key=value: --label switch=leaf-3")
        if key.strip() in found:
            raise HostError(f"--label: {key.strip()!r:.80} is given twice")
        found[key.strip()] = value.strip()
    return found


def _token(file: Path | None) -> str:
    """From the file, from a pipe, or asked for: never from a command line, which everybody on this host can read."""
    try:
        if file is not None:
            text = file.read_text()
        elif sys.stdin is not None and not sys.stdin.isatty():
            text = sys.stdin.read(1000)
        else:
            text = getpass.getpass("Token of the pool: ")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise HostError(f"the token cannot be read: {error}") from error
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise HostError("no token was given: pipe it in, or name its file with --token-file")
    return token


def _run(place: HostPlace, options: argparse.Namespace) -> int:
    member = place.member()
    if member is None:
        raise HostError("this host is in no pool: allpass node join")
    place.prepare()
    os.umask(0o022)  # whoever has started us may hide all that he writes; users of jobs read some of it
    held = place.lock()
    if held is None:
        raise HostError(f"another process works for {place.root} already")
    with held:
        code = Daemon(place, member, with_machines=options.with_machines).run()
    if place.member() is None:
        service.remove(place)
    return code


def _leave(place: HostPlace, options: argparse.Namespace) -> int:
    member = place.member()
    if member is None:
        raise HostError("this host is in no pool")
    place.ask_to_leave()
    print(f"leaves pool {member.pool}: what runs here moves away first", flush=True)
    if options.no_wait:
        return 0
    held = place.lock()
    if held is not None:  # nobody works for it: do it here
        with held:
            Daemon(place, member).run()
    while place.member() is not None:
        time.sleep(_LEAVE_LOOK_S)
    service.remove(place)
    with contextlib.suppress(OSError):
        shutil.rmtree(place.root)
    print("left: nothing of it is on this host any more")
    return 0


def _status(place: HostPlace, _: argparse.Namespace) -> int:
    member = place.member()
    if member is None:
        print("in no pool")
        return 1
    held = place.lock()
    if held is not None:
        held.close()
    works = "does not run (allpass-host run)" if held is not None else "works"
    print(f"{member.host_id} in pool {member.pool} of {member.url}: {works}")
    return 0 if held is None else 1
