"""Hosts join and leave over the system's ssh: with its keys, its configuration and its known hosts."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import typer

from allpass.cli import screen
from allpass.cli.faults import CommandFailed

_AT_ONCE = 16
_JOIN_S, _LEAVE_S = 300, 1500
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-T")
# The script comes through standard input, the token in it: neither is ever on a command line.
_JOIN = """\
TOKEN=$(mktemp) || exit 1
trap 'rm -f "$TOKEN"' EXIT
chmod 600 "$TOKEN"
cat >"$TOKEN" <<'ALLPASS_TOKEN'
{token}
ALLPASS_TOKEN
sh -s -- --token-file "$TOKEN" {options} <<'ALLPASS_SCRIPT'
{script}
ALLPASS_SCRIPT
"""
_LEAVE = """\
ROOT={root}
if [ -z "$ROOT" ]; then
  if [ "$(id -u)" = 0 ]; then ROOT=/var/lib/allpass-host; else ROOT=$HOME/.allpass/host; fi
fi
[ -f "$ROOT/allpass-host.pyz" ] || {{ echo "error: no host of a pool works in $ROOT" >&2; exit 1; }}
for python in python3 python python3.13 python3.12 python3.11 python3.10 python3.9; do
  if "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then break; fi
done
exec "$python" -I -S "$ROOT/allpass-host.pyz" --root "$ROOT" leave
"""


def join_over_ssh(
    url: str,
    token: str,
    hosts: Sequence[str],
    *,
    ssh: str,
    cpu: bool = False,
    root: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> int:
    """Have each host join, with these labels, at most 16 at once; 1 if one could not."""
    options = [*(["--cpu"] if cpu else []), *(["--root", shlex.quote(root)] if root else [])]
    options += [f"--label {shlex.quote(f'{key}={value}')}" for key, value in (labels or {}).items()]
    script = _JOIN.format(token=token, options=" ".join(options), script=script_of(url))
    return _on_all(hosts, ssh, script, _JOIN_S)


def leave_over_ssh(hosts: Sequence[str], *, ssh: str, root: str | None = None) -> int:
    """Have each host leave, and wait until nothing of it is there; 1 if one could not."""
    return _on_all(hosts, ssh, _LEAVE.format(root=shlex.quote(root or "")), _LEAVE_S)


def script_of(url: str) -> str:
    import httpx

    try:
        answer = httpx.get(f"{url.rstrip('/')}/join.sh", timeout=30)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise CommandFailed(f"{url}/join.sh cannot be fetched: {error}", hint="allpass context") from error
    return answer.text


def _on_all(hosts: Sequence[str], ssh: str, script: str, limit_s: int) -> int:
    for host in hosts:
        if host.startswith("-") or not host.strip():
            raise CommandFailed(f"{host!r} is no host that ssh can be told", hint="me@gpu-box-1")
    run: Callable[[str], bool] = lambda host: _on(host, ssh, script, limit_s)  # noqa: E731
    with ThreadPoolExecutor(min(_AT_ONCE, len(hosts))) as pool:
        done = list(pool.map(run, hosts))
    return 0 if all(done) else 1


def _on(host: str, ssh: str, script: str, limit_s: int) -> bool:
    """What it says is told line by line, each with the host's name."""
    argv = [*shlex.split(ssh), *_OPTIONS, "--", host, "sh -s"]
    try:
        ended = subprocess.run(  # noqa: S603 - the system's ssh
            argv, input=script, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        screen.say(f"{host}: no answer within {limit_s} s")
        return False
    except OSError as error:
        raise CommandFailed(f"{argv[0]} cannot be started: {error.strerror}", hint="install an ssh client") from error
    for line in ended.stdout.splitlines():
        typer.echo(screen.printable(f"{host}: {line}"))
    for line in ended.stderr.splitlines():
        print(screen.printable(f"{host}: {line}"), file=sys.stderr)
    if ended.returncode == 255 and not ended.stderr.strip():
        screen.say(f"{host}: ssh could not reach it")
    return ended.returncode == 0
