"""What is started in place of a program that takes long to load: has `forking.py` fork one from a process that has
loaded, and ends as that one does."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["FORKS"])
    held = [int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
    order = {"environ": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[1:], "held": held}  # noqa: PTH109 - as little as may be is loaded
    socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
    os.close(0)
    os.close(2)
    code = int(server.recv(16) or 1)
if code < 0:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.kill(os.getpid(), -code)
sys.exit(code)
