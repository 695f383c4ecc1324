"""What a rented machine starts with: one small shell script that fetches the agent, proves its hash and becomes it.

The same script for every company: Modal runs it as `sh -c`, Vast.ai so on one line, Lambda hands it to cloud-init.
It needs a POSIX shell and Python 3.9, nothing else. It may run again whenever the machine does: what it has fetched is
kept, and proven anew each time.
"""

from __future__ import annotations

import re
import shlex

from app.errors import InvalidRequest
from app.ports.provider import MachineRequest

LARGEST_BYTES = 4096  # what Vast.ai takes
_NEEDED = ("ALLPASS_URL", "ALLPASS_AGENT_SHA256")
_NAME = re.compile(r"ALLPASS_[A-Z0-9_]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")

# Exit codes: 2 and 3 as of the agent (cannot run here; not let in), 4 when the agent could not be had in time.
_FETCH = """\
import hashlib, http.client, os, sys, time, urllib.request
E = os.environ
url, want = E["ALLPASS_URL"].rstrip("/"), E["ALLPASS_AGENT_SHA256"]
root = E.get("ALLPASS_AGENT_ROOT") or ("/var/lib/allpass" if os.getuid() == 0 else os.path.expanduser("~/.allpass"))
E["ALLPASS_AGENT_ROOT"] = root
path = os.path.join(root, "agent-" + want + ".pyz")
end, pause = time.monotonic() + float(E.get("ALLPASS_BOOTSTRAP_LIMIT_S") or 1800), 0.5
def check(data):
    got = hashlib.sha256(data).hexdigest()
    if got != want:
        raise ValueError("got %d bytes of sha256 %s, not %s" % (len(data), got, want))
def fetch():
    ask = urllib.request.Request(url + "/agent/" + want + ".pyz", headers={"User-Agent": "allpass-agent"})
    data, late = b"", time.monotonic() + 120
    with urllib.request.urlopen(ask, timeout=20) as reply:
        while len(data) < 1 << 25 and time.monotonic() < late:
            more = reply.read1(1 << 16)
            if not more:
                break
            data += more
    check(data)
    part = path + "." + str(os.getpid())
    with open(part, "wb") as file:
        file.write(data)
    os.replace(part, path)
def leave():
    gone, _, key = E.get("ALLPASS_AGENT_ENDS", "").partition(" ")
    if E.get(key):
        head = {"Authorization": "Bearer " + E[key], "Content-Type": "application/json"}
        try:
            ask = urllib.request.Request(gone.format(**E), b"{}", head, method="DELETE")
            urllib.request.urlopen(ask, timeout=20).close()
        except (OSError, ValueError, LookupError) as error:
            print("allpass: this machine could not be ended: %s" % error, file=sys.stderr)
try:
    os.makedirs(root, exist_ok=True)
except OSError as error:
    sys.exit("allpass: no folder for the agent: %s" % error)
while True:
    try:
        with open(path, "rb") as file:
            check(file.read())
        break
    except (OSError, ValueError):
        pass
    try:
        fetch()
    except (OSError, ValueError, http.client.HTTPException) as error:
        print("allpass: no agent from %s yet: %s" % (url, error), file=sys.stderr, flush=True)
        if time.monotonic() + pause > end:
            leave()
            sys.exit(4)
        time.sleep(pause)
        pause = min(2 * pause, 10)
os.execv(sys.executable, [sys.executable, "-I", "-S", path])
"""

# cloud-init runs user data once in the life of a machine, and from this folder; from then on the unit does.
_SERVICE = """\
case $0 in
/var/lib/cloud/*)
  mkdir -p /var/lib/allpass
  (umask 077; cp "$0" /var/lib/allpass/bootstrap)
  cat >/etc/systemd/system/allpass-agent.service <<'UNIT'
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh /var/lib/allpass/bootstrap
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 3
KillMode=mixed
TimeoutStopSec=360
[Install]
WantedBy=multi-user.target
UNIT
  systemctl daemon-reload
  systemctl enable allpass-agent
  exec systemctl --no-block restart allpass-agent ;;
esac
"""

_TEMPLATE = """\
#!/bin/sh
# Allpass: fetches the agent, proves its hash, becomes it.
set -eu
@EXPORTS@
@SERVICE@for python in python3 python python3.13 python3.12 python3.11 python3.10 python3.9 none; do
  if "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then break; fi
done
if [ "$python" != none ]; then exec "$python" -I -c '@FETCH@'; fi
echo "allpass: this machine has no Python 3.9 or newer: choose an image that has one" >&2
exit 2
"""


def bootstrap_script(request: MachineRequest) -> str:
    """The script that turns the requested machine into one of ours, with what `request.bootstrap` says in it.

    At most `LARGEST_BYTES` of UTF-8. Raises InvalidRequest for what cannot be put into it: an address or a hash that is
    missing or is none, a name that is not ours, text that is too long.
    """
    return _fitting(_script(request, _SERVICE))


def bootstrap_line(request: MachineRequest) -> str:
    """The same for a container, on one line: a company that puts a command together from texts cannot tear it apart.

    Where it runs again is the company's affair, so nothing of a system service is in it. Raises as the script does.
    """
    escaped = _script(request, "").replace("\\", "\\\\").replace("\n", "\\n")
    return _fitting(f'eval "$(printf %b {shlex.quote(escaped)})"')


def _script(request: MachineRequest, service: str) -> str:
    given = dict(request.bootstrap)
    missing = [name for name in _NEEDED if not given.get(name)]
    if missing:
        raise InvalidRequest(f"a machine cannot be bootstrapped without {', '.join(missing)}")
    if not given["ALLPASS_URL"].startswith(("http://", "https://")):
        raise InvalidRequest(f"ALLPASS_URL is {given['ALLPASS_URL']!r}; a machine needs an http:// or https:// address")
    if not _SHA256.fullmatch(given["ALLPASS_AGENT_SHA256"]):
        raise InvalidRequest("ALLPASS_AGENT_SHA256 must be 64 hex characters")
    for name, value in given.items():
        if not _NAME.fullmatch(name) or not value.isprintable():
            raise InvalidRequest(f"{name!r} cannot be set on a machine: ALLPASS_..., one printable line")
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in given.items())
    return _TEMPLATE.replace("@FETCH@", _FETCH).replace("@SERVICE@", service).replace("@EXPORTS@", exports)


def _fitting(script: str) -> str:
    size_bytes = len(script.encode())
    if size_bytes > LARGEST_BYTES:
        raise InvalidRequest(f"the bootstrap script has {size_bytes} bytes, at most {LARGEST_BYTES} are possible")
    return script
