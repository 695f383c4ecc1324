"""Start what is asked for: the host's own commands, or a part of the program that it starts itself."""

from __future__ import annotations

import sys

from workers.machines.parts import KEEP, SWEEP


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in (KEEP, SWEEP):
        part, sys.argv = sys.argv[1], [sys.argv[0], *sys.argv[2:]]
        if part == KEEP:
            from workers.machines.keeper import main as keep

            return keep()
        from workers.agent.sweep import main as sweep

        return sweep()
    from workers.host.command import main as command

    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
