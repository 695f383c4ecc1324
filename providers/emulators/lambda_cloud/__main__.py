"""`python -m providers.emulators.lambda_cloud --data-dir D`: see `providers.emulators.serving`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from providers.emulators.lambda_cloud.emulation import EMULATION
from providers.emulators.serving import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to end; the exit code."""
    return run(EMULATION, arguments)


if __name__ == "__main__":
    sys.exit(main())
