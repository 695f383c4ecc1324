"""Starts `torchrun` with two processes, as a script of a shell would."""

import subprocess
import sys

if len(sys.argv) > 1:
    from trainer import train

    train(ddp_backend="gloo", ddp_find_unused_parameters=False)
else:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    sys.exit(subprocess.run([*launcher, __file__, "worker"], check=False).returncode)
