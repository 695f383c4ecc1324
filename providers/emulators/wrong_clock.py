"""Machines whose clock is off, as some are by hours: what runs there is told another time than it is.

All emulated machines share this host's clock, which cannot be set for one of them. So the C library's functions that
tell the time of day are wrapped for what runs on such a machine, its agent included; what the kernel writes (the times
of files) stays right, which is harder on programs than a clock that is wrong everywhere.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from providers.emulators.switches import Switches, Value

AHEAD, BEHIND = "clock_ahead_s", "clock_behind_s"
SWITCHES: Mapping[str, Value] = {AHEAD: 0, BEHIND: 0}  # of machines that start from now on
_OFF = "ALLPASS_EMULATED_CLOCK_OFF_S"
_WITHIN_S = 60
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long off_s(void) { const char *told = getenv("ALLPASS_EMULATED_CLOCK_OFF_S"); return told ? atol(told) : 0; }

int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, at);
    if (!failed && which == CLOCK_REALTIME) at->tv_sec += off_s();
    return failed;
}

time_t time(time_t *kept) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (kept) *kept = at.tv_sec;
    return at.tv_sec;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def surroundings(switches: Switches, folder: Path) -> dict[str, str]:
    """What a machine that starts now has in its environment; nothing where its clock is right.

    Raises OSError where this host has no C compiler to wrap the functions with.
    """
    off_s = switches[AHEAD] - switches[BEHIND]
    return {"LD_PRELOAD": str(_wrapped(folder)), _OFF: str(off_s)} if off_s else {}


def _wrapped(folder: Path) -> Path:
    """The library, built once for each data directory. Machines' users read it, too."""
    library = folder / "wrong_clock.so"
    if library.exists():
        return library
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("machines with a wrong clock take a C compiler on this host: install one called cc")
    source, built = folder / "wrong_clock.c", folder / "wrong_clock.so.new"
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)  # noqa: S603 - ours
    if done.returncode:
        raise OSError(f"the C compiler failed: {done.stderr.strip()[:500]}")
    built.chmod(0o755)
    built.rename(library)
    return library
