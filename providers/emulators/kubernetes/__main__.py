"""`python -m providers.emulators.kubernetes --data-dir D`: see `providers.emulators.serving`."""

from __future__ import annotations

import sys

from providers.emulators.kubernetes.emulation import EMULATION
from providers.emulators.serving import run

if __name__ == "__main__":
    sys.exit(run(EMULATION))
