"""Start the agent: `python allpass-agent.pyz`. Configuration comes from the environment (see `config.py`).

Ends with 0 after SIGTERM, 2 when it is not configured, 3 when the control plane does not let us in (any
more), 5 when it has not answered for so long that the machine ends by itself.
"""

from __future__ import annotations

import os
import sys

from workers.agent import config as configuration


def main() -> int:
    try:
        if not configuration.blot_out_tokens(os.environ):
            cleaned = configuration.rewritten_environ(os.environ)
            os.execve(sys.executable, configuration.same_program(), cleaned)  # noqa: S606 - ourselves again
        configuration.forbid_inspection()
        config = configuration.load(os.environ)
        credential = configuration.take_credential(os.environ)
    except (ValueError, OSError) as error:
        print(f"allpass agent: {error}", file=sys.stderr)
        return 2
    import signal  # these two now, when the token is out of sight

    from workers.agent.agent import Agent

    agent = Agent(config, credential)
    signal.signal(signal.SIGTERM, agent.leave)
    signal.signal(signal.SIGINT, agent.leave)
    return agent.run()


if __name__ == "__main__":
    sys.exit(main())
