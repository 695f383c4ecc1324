"""`allpass` and `python -m allpass`: the command line, or in one line why it cannot run here."""

from __future__ import annotations

import sys

from allpass import check_python


def main() -> None:
    try:
        check_python()
    except ImportError as error:
        sys.exit(f"error: {error}")
    from allpass.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
