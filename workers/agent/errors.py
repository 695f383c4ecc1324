"""Every error that the agent raises on purpose.

AgentError
├── Unreachable      no answer, or one that says "later": try again, nothing is lost
│   └── Full         the store has no room now
├── Refused          the server said no, for good
│   ├── Forgotten    401/403: this node's token counts no longer
│   └── Fenced       409 fenced: another run holds the job's epoch now
├── Corrupt          bytes that are not what their hash says
├── Changed          a file changed while it was being sent
├── Unsafe           a bundle or path that would leave its folder
├── EnvironmentFailed  the environment, bundle or checkpoint of a run could not be prepared
│   └── MachineFailed  and this machine is to blame
└── Aborted          the work is no longer wanted
"""

from __future__ import annotations

from typing import Optional


class AgentError(Exception):
    """Root of the tree."""


class Unreachable(AgentError):
    pass


class Full(Unreachable):
    pass


class Refused(AgentError):
    """`code` is the server's own word for it, or "" when the body was none of ours; `param`: the field, if it named
    one."""

    def __init__(self, status: int, code: str, message: str, param: str = "") -> None:
        super().__init__(f"{status} {code}: {message}" if code else f"{status}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.param = param


class Forgotten(Refused):
    pass


class Fenced(Refused):
    pass


class Corrupt(AgentError):
    """`sha256`: the piece of a checkpoint that did not arrive, when it is that."""

    def __init__(self, message: str, sha256: Optional[str] = None) -> None:
        super().__init__(message)
        self.sha256 = sha256


class Changed(AgentError):
    pass


class Unsafe(AgentError):
    pass


class EnvironmentFailed(AgentError):
    """Its text is what the user reads."""


class MachineFailed(EnvironmentFailed):
    """This machine is to blame: another one may succeed."""


class Aborted(AgentError):
    pass
