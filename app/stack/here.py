"""This very host as a pool of a one-machine stack: its own GPUs, at no price; without any, its processors.

The same program that other hosts run, as a child of the stack: what runs on it ends with the stack.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.errors import Unavailable
from app.stack.child import Child
from workers.host.facts import look_at_gpus
from workers.host.place import HostPlace
from workers.machines.parts import HOME

POOL = "here"
_JOIN_WITHIN_S = 90.0
_RUN = "import sys; sys.path.insert(0, {home!r}); from workers.host.command import main; sys.exit(main(sys.argv[1:]))"


class HostChild(Child):
    """It answers nobody: it is ready as soon as it is up."""

    def answers(self) -> bool:
        """See `Child.answers`."""
        return self.alive()


def host_child(root: Path, log_file: Path) -> HostChild:
    return HostChild("here", [*program_of(root), "run", "--with-machines"], environment={}, log_file=log_file, port=0)


def gpus_here() -> tuple[str, ...]:
    """Names of the GPUs that jobs could have here; none where they cannot be used."""
    look = look_at_gpus("")
    return () if look.why else tuple(gpu.name for gpu in look.gpus)


def join_here(root: Path, url: str, api_key: str, tell: Callable[[str], None]) -> None:
    """Make this host the one of pool `here`, which is made if need be. One that has joined before stays that host,
    wherever the stack serves now. Raises Unavailable with what the host's program says."""
    from allpass import Client
    from allpass.errors import Conflict

    place = HostPlace(root)
    place.prepare()
    member = place.member()
    if member is not None:
        place.set_member(member._replace(url=url))
        return
    with Client(url, api_key) as client:
        with suppress(Conflict):  # it is there from an earlier start
            client.create_pool(POOL)
        token = client.create_pool_token(POOL, valid_s=600).token
    found = gpus_here()
    words = ["join", url, "--no-start", "--name", POOL, *([] if found else ["--cpu", "--for-all"])]
    done = subprocess.run(  # noqa: S603 - our own program
        [*program_of(root), *words], input=token, capture_output=True, text=True, timeout=_JOIN_WITHIN_S, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"this host could not become a pool: {done.stderr.strip()[-500:]}")
    if not found:
        tell(f"{look_at_gpus('').why}: jobs get this host's processors")


def program_of(root: Path) -> list[str]:
    """What takes a word of the host's program behind it."""
    return [sys.executable, "-P", "-c", _RUN.format(home=str(HOME)), "--root", str(root)]
