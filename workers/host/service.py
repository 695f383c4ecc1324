"""Keep a host working: as a unit of systemd where that runs and we may, else as a plain process."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from workers.host.place import HostError, HostPlace
from workers.machines.parts import HOME, archive

UNIT = "allpass-host.service"
PROGRAM = "allpass-host.pyz"
_UNITS = Path("/etc/systemd/system")
_RUNS = Path("/run/systemd/system")
_TEXT = """\
[Unit]
Description=This host is one of a pool of Allpass
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
ExecStart={command}
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=1 2 3
KillMode=process
[Install]
WantedBy=multi-user.target
"""


def start(place: HostPlace) -> str:
    """What was done, in words for whoever joins. Raises HostError."""
    argv = command(place)
    if _RUNS.is_dir() and os.geteuid() == 0 and shutil.which("systemctl"):
        (_UNITS / UNIT).write_text(_TEXT.format(command=" ".join(map(_quoted, argv))))
        for words in (["daemon-reload"], ["enable", "--now", UNIT]):
            _systemctl(words)
        return f"it works as {UNIT}, also after a reboot (systemctl status {UNIT})"
    pid = _spawn(place, argv)
    again = " ".join(map(shlex.quote, argv))
    return (
        f"it works as process {pid} ({place.log_file}); after a reboot it is started with: {again}\n"
        f"  for instance by a line of `crontab -e`:  @reboot {again}"
    )


def remove(place: HostPlace) -> None:
    """The unit, if it is there, and runs this very place."""
    unit = _UNITS / UNIT
    try:
        if _quoted(str(place.root))[1:-1] not in unit.read_text():
            return
        unit.unlink()
    except OSError:
        return
    for words in (["disable", UNIT], ["daemon-reload"]):
        try:
            _systemctl(words)
        except HostError:  # the unit's file is gone: it is not started again
            continue


def command(place: HostPlace) -> list[str]:
    """What runs this host; the program is kept beside what it needs."""
    packed = archive()
    if packed is None:
        run = f"import sys; sys.path.insert(0, {str(HOME)!r}); from workers.host.command import main; "
        return [sys.executable, "-I", "-c", run + f"sys.exit(main(['--root', {str(place.root)!r}, 'run']))"]
    kept = place.root / PROGRAM
    if Path(packed).absolute() != kept:
        part = kept.with_suffix(".part")
        shutil.copyfile(packed, part)
        part.chmod(0o755)
        part.replace(kept)
    return [sys.executable, "-I", "-S", str(kept), "--root", str(place.root), "run"]


def _systemctl(words: list[str]) -> None:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)  # noqa: S603, S607 - words of ours
    if done.returncode != 0:
        raise HostError(f"systemctl {' '.join(words)} says: {done.stderr.strip()[:300]}")


def _spawn(place: HostPlace, argv: list[str]) -> int:
    log = os.open(place.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=str(place.root), start_new_session=True
        )
    finally:
        os.close(log)
    process.returncode = 0  # nobody waits for it
    return process.pid


def _quoted(word: str) -> str:
    """As systemd reads a word of a command line."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'
