"""The program that hosts of pools fetch from us and run, and the script that fetches it."""

from __future__ import annotations

import hashlib
import shlex
from functools import cache

from app.services.nodes.agent_program import AgentProgram
from workers.host.build import packed_host

_SCRIPT = """\
#!/bin/sh
# Makes this host one of a pool of Allpass:
#   curl -fsS @URL@/join.sh | sh                      asks for the pool's token
#   curl -fsS @URL@/join.sh | sh -s -- --token-file FILE [--cpu] [--name NAME] [--label KEY=VALUE] [--root FOLDER]
#     [--keep-free-gb N]
# Installs nothing but one folder (/var/lib/allpass-host as root, else ~/.allpass/host) and, where systemd runs, one
# unit. `allpass node leave`, or the program's own `leave`, takes both away again.
set -eu
URL=@URL@
SHA256=@SHA256@
say() { printf '%s\\n' "$*" >&2; }
die() { say "error: $1"; exit 1; }
[ "$(uname -s)" = Linux ] || die "only Linux hosts can join a pool, and this one is $(uname -s)"
for python in python3 python python3.13 python3.12 python3.11 python3.10 python3.9 none; do
  if "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then break; fi
done
[ "$python" != none ] || die "no Python 3.9 or newer was found: install it (Debian, Ubuntu: apt-get install python3)"
ROOT=
TOKEN=
TOKEN_FILE=
REST=
while [ $# -gt 0 ]; do
  case $1 in
  --root) ROOT=${2:?}; shift 2 ;;
  --token-file) TOKEN_FILE=${2:?}; shift 2 ;;
  --name|--label|--keep-free-gb|--nvidia-smi)
    REST="$REST $1 '$(printf %s "${2:?}" | sed "s/'/'\\\\\\\\''/g")'"; shift 2 ;;
  --cpu|--no-start) REST="$REST $1"; shift ;;
  -*) die "$1 is no option of this script: --token-file, --cpu, --name, --label, --root, --keep-free-gb" ;;
  *) TOKEN=$1; shift ;;
  esac
done
if [ -z "$ROOT" ]; then
  if [ "$(id -u)" = 0 ]; then ROOT=/var/lib/allpass-host; else ROOT=$HOME/.allpass/host; fi
fi
(umask 022; mkdir -p "$ROOT") 2>/dev/null || die "$ROOT cannot be made: name another folder with --root"
PROGRAM=$ROOT/allpass-host.pyz
"$python" -I -c '
import hashlib, os, sys, urllib.request
url, want, path = sys.argv[1:]
try:
    data = urllib.request.urlopen(url + "/host/" + want + ".pyz", timeout=60).read(1 << 24)
    if hashlib.sha256(data).hexdigest() != want:
        sys.exit("error: what came from %s is not the program of its release: is something between us?" % url)
    part = path + ".part"
    with open(part, "wb") as file:
        file.write(data)
    os.chmod(part, 0o755)
    os.replace(part, path)
except OSError as error:
    sys.exit("error: the program cannot be fetched from %s or stored at %s: %s" % (url, path, error))
' "$URL" "$SHA256" "$PROGRAM"
run() { eval "\\"$python\\" -I -S \\"$PROGRAM\\" --root \\"$ROOT\\" join \\"$URL\\" $REST"; }
if [ -n "$TOKEN_FILE" ]; then
  [ -r "$TOKEN_FILE" ] || die "$TOKEN_FILE cannot be read"
  run <"$TOKEN_FILE"
elif [ -n "$TOKEN" ]; then
  say "note: whoever was logged in here could read the token in the list of processes: --token-file FILE hides it"
  printf '%s' "$TOKEN" | run
elif [ -r /dev/tty ]; then
  run </dev/tty
else
  die "no token was given: --token-file FILE"
fi
"""


@cache
def host_program() -> AgentProgram:
    """Built from the sources of this very installation, once in a process. Takes a moment: not for an event loop."""
    data = packed_host()
    return AgentProgram(data, hashlib.sha256(data).hexdigest())


def join_script(url: str) -> str:
    """What `curl ... | sh` runs on a host; it calls this address from then on."""
    return _SCRIPT.replace("@URL@", shlex.quote(url.rstrip("/"))).replace("@SHA256@", host_program().sha256)
