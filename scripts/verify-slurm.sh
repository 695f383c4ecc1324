#!/bin/sh
# Whether the settings for Slurm work, on the host that Allpass will run on (a login node): one tiny job for each shape of
# ALLPASS_SLURM_SHAPES, as Allpass would submit it. Says in one sentence for each what is wrong, and leaves no job.
#
#   set -a; . ./.env; set +a; sh scripts/verify-slurm.sh
#
# It looks whether the partition takes such jobs, when one would start, whether its node has Python and a folder to work
# in, reaches ALLPASS_PUBLIC_URL (where that is set) and has the GPUs, and whether a job is shown with the mark that Allpass
# knows its jobs by. Exit code 0: all shapes work; 1: some do not; 2: the settings cannot be read.
set -eu
cd "$(dirname -- "$0")/.."
PYTHON=${ALLPASS_VENV:-$PWD/.venv}/bin/python
[ -x "$PYTHON" ] || PYTHON=python3
exec "$PYTHON" -P -m providers.slurm.verify
