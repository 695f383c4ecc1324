"""What a first process starts in place of a follower: has `followers.py` fork one, and ends as that one does."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["FOLLOWERS"])
    order = {"environ": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109 - as little as may be is loaded
    socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
    os.close(0)
    os.close(2)
    code = int(server.recv(16) or 1)
if code < 0:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.kill(os.getpid(), -code)
sys.exit(code)
