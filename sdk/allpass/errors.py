"""Every error of the SDK, one class per meaning.

AllpassError
├── ConfigurationError          no server or key is configured, or the configuration cannot be read
├── InvalidInput                refused here, before anything was sent; also a ValueError
│   ├── InvalidTemplate         `.problems` lists each wrong field
│   ├── InvalidData             rows of a data file; `.problems` lists the first of them
│   └── BundleError             the code cannot be packed; `.path` is the offending file
├── ConnectionFailed            no answer: wrong address, server down, or the connection broke
├── UnexpectedReply             an answer that is not Allpass's: a proxy's page, or a far older or newer server
├── ApiError                    Allpass answered with an error: `.code`, `.param`, `.request_id`, `.http_status`
│   ├── InvalidRequest          400, 422
│   ├── AuthenticationError     401  the API key is missing, wrong or revoked
│   ├── PermissionDenied        403
│   ├── NotFound                404  also for what belongs to another project
│   ├── Conflict                409  the thing is not in a state that allows this
│   ├── TooLarge                413
│   ├── RateLimited             429
│   └── ServerError             5xx
├── StorageError                a signed URL refused the bytes, or what came back has the wrong hash
├── JobFailed                   `wait(check=True)`: the job ended, but not well; `.job` is its last state
└── WaitTimeout                 the job had not ended in time; it goes on. Also a TimeoutError

`hint`, where there is one, is the next thing to try, ready to be pasted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from allpass.wire.jobs import Job


class AllpassError(Exception):
    """Root of the tree. `message` is for people; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigurationError(AllpassError):
    """Nothing was sent: it is not known where to, or as whom."""


class InvalidInput(AllpassError, ValueError):
    """A value was refused before anything was sent."""


@dataclass(frozen=True)
class Problem:
    """One wrong field: where it is (`training.batch_size`), what is wrong, and what would be accepted."""

    where: str
    message: str
    hint: str | None = None


class InvalidTemplate(InvalidInput):
    """`source` is the template's file name, or "template" for one given as a dict."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(self.lines()), hint=next((one.hint for one in problems if one.hint), None))

    def lines(self) -> list[str]:
        """One line per problem: file, field, value and what is wrong with it."""
        return [
            ", ".join(part for part in (self.source, one.where) if part) + f": {one.message}" for one in self.problems
        ]


class InvalidData(InvalidInput):
    """`source` is the file's name. `problems`: the first of them; `count`: how many there are."""

    def __init__(self, source: str, problems: list[Problem], count: int | None = None) -> None:
        self.source = source
        self.problems = problems
        self.count = len(problems) if count is None else count
        lines = [", ".join(part for part in (source, one.where) if part) + f": {one.message}" for one in problems]
        if self.count > len(problems):
            lines.append(f"and {self.count - len(problems)} more")
        super().__init__("\n".join(lines), hint=next((one.hint for one in problems if one.hint), None))


class BundleError(InvalidInput):
    """`path` is relative to the code folder, `/` separated; None when the folder as a whole is meant."""

    def __init__(self, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class ConnectionFailed(AllpassError):
    """No answer. Whether the request had an effect is unknown; the same idempotency key makes a repeat harmless."""


class UnexpectedReply(AllpassError):
    """The answer is not one that this version of the SDK understands."""


class StorageError(AllpassError):
    """Bytes did not arrive, or are not what their hash says. Nothing half-written is left behind."""

    def __init__(self, message: str, *, http_status: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.http_status = http_status


class ApiError(AllpassError):
    """`code` is from the documented list, `param` names the field, `request_id` finds it in the server's log."""

    default_hint: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        code: str,
        http_status: int,
        param: str | None = None,
        request_id: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message, hint=self.default_hint)
        self.code = code
        self.param = param
        self.request_id = request_id
        self.http_status = http_status
        self.retryable = retryable

    def __str__(self) -> str:
        where = f"{self.param}: " if self.param and self.param not in self.message else ""
        return f"{where}{self.message}" + (f" (request {self.request_id})" if self.request_id else "")


class InvalidRequest(ApiError):
    """The service refused a field; `param` says which."""


class AuthenticationError(ApiError):
    """The API key is missing, wrong or revoked."""

    default_hint = "allpass login URL"


class PermissionDenied(ApiError):
    """The API key may not do this."""


class NotFound(ApiError):
    """There is no such thing in this project."""


class Conflict(ApiError):
    """The thing is not in a state that allows this."""


class TooLarge(ApiError):
    """More bytes than the service accepts."""


class RateLimited(ApiError):
    """Too many requests, even after waiting and trying again."""


class ServerError(ApiError):
    """The service failed, or a part of it is away."""


class JobFailed(AllpassError):
    """The job ended as `failed` or `cancelled`."""

    def __init__(self, job: Job) -> None:
        why = job.message or job.reason or "no reason was recorded"
        super().__init__(f"{job.id} {job.status}: {why}", hint=f"allpass show {job.id}")
        self.job = job


class WaitTimeout(AllpassError, TimeoutError):
    """The job had not ended when the time was up. It goes on running."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: AuthenticationError,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    429: RateLimited,
}


def api_error_class(http_status: int) -> type[ApiError]:
    """The class that means this HTTP status."""
    if http_status >= 500:
        return ServerError
    return _BY_STATUS.get(http_status, InvalidRequest)
