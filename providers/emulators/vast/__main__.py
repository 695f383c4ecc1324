"""`python -m providers.emulators.vast`: see `providers.emulators.serving`."""

import sys

from providers.emulators.serving import run
from providers.emulators.vast.company import VAST_EMULATION

if __name__ == "__main__":
    sys.exit(run(VAST_EMULATION))
