"""How to start the local cloud as a child process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DEFAULT_PORT = 7702
DEFAULT_AGENT_COMMAND = "{python} -I -S {agent_zipapp}"  # it needs no package: why look for them
KEY_VARIABLE = "ALLPASS_LOCAL_CLOUD_KEY"


def cloud_command(
    data_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    speed: float = 0.1,
    seed: int = 1,
    agent_command: str = DEFAULT_AGENT_COMMAND,
    die_with_parent: bool = True,
    machines_die_with_cloud: bool = True,
) -> list[str]:
    """The command line, for a child of the calling process.

    Its environment must hold the API key as KEY_VARIABLE. It is ready when it has written its line of JSON to standard
    output, and when GET /healthz answers. With `die_with_parent` it must be started by the main thread: on Linux the
    system reports the end of the thread, not of the process.
    """
    machines = "--machines-die-with-cloud" if machines_die_with_cloud else "--no-machines-die-with-cloud"
    command = [sys.executable, "-P", "-m", "providers.local.cloud", "--data-dir", str(data_dir), "--host", host]
    command += ["--port", str(port), "--speed", str(speed), "--seed", str(seed)]
    command += ["--agent-command", agent_command, machines]
    if die_with_parent:
        command += ["--die-with-parent", str(os.getpid())]
    return command
