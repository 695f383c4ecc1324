"""What a job runs: it makes itself a folder on its node, and becomes the agent.

The script reaches sbatch by its standard input, and a node by Slurm's own messages: what it holds stands on no command
line and in no environment that Slurm shows.
"""

from __future__ import annotations

import shlex

from app.ports.provider import MachineRequest
from providers.bootstrap import bootstrap_script
from providers.slurm.options import SlurmOptions

# The shell becomes Python, and Python the agent: Slurm's signals reach the agent, once. Homes are shared between nodes,
# so each job's folder lies on its node; those of jobs whose process is gone are removed by whoever comes next.
_PLACE = """\
#!/bin/sh
# Allpass: a machine in the allocation of this job.
set -u
umask 022
@SETUP@
parent=@SCRATCH@/allpass-$(id -u)-$(hostname)
mkdir -p "$parent" || exit 2
if [ -L "$parent" ] || [ ! -O "$parent" ]; then
  echo "allpass: $parent is not this user's: have it removed, or set ALLPASS_SLURM_SCRATCH to another folder" >&2
  exit 2
fi
chmod 711 "$parent"
for old in "$parent"/*; do
  read -r pid <"$old/pid" && ! kill -0 "$pid" && rm -rf "$old"
done 2>/dev/null
export ALLPASS_AGENT_ROOT="$parent/$SLURM_JOB_ID"
mkdir -p "$ALLPASS_AGENT_ROOT" || exit 2
echo $$ >"$ALLPASS_AGENT_ROOT/pid"
if [ -n "${SLURM_GPUS_ON_NODE:-}" ] && command -v nvidia-smi >/dev/null 2>&1; then
  seen=$(nvidia-smi -L | grep -c '^GPU ')
  if [ "$seen" -gt "$SLURM_GPUS_ON_NODE" ]; then
    if [ -z "${SLURM_JOB_GPUS:-}" ]; then
      echo "allpass: this job has $SLURM_GPUS_ON_NODE of the $seen GPUs that it sees, and Slurm does not say which: \\
set ConstrainDevices=yes in cgroup.conf, or ask for whole nodes" >&2
      exit 2
    fi
    export ALLPASS_AGENT_GPUS="$SLURM_JOB_GPUS"
  fi
fi
"""


def batch_script(request: MachineRequest, options: SlurmOptions) -> str:
    """Raises InvalidRequest for a request that cannot be bootstrapped."""
    place = _PLACE.replace("@SETUP@", options.setup).replace("@SCRATCH@", shlex.quote(options.scratch.rstrip("/")))
    return place + bootstrap_script(request).partition("\n")[2]
