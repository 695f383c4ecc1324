"""What Modal's client raises, in our words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from grpclib import Status
from modal_proto import api_pb2

from app.errors import (
    AuthFailed,
    ImageRefused,
    InvalidRequest,
    NoCapacity,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)
from providers.modal.sdk import modal

vendor = modal.exception
_NO_CAPACITY_WORDS = ("insufficient capacity", "no capacity", "out of capacity")
_REBUILD_WORDS = ("external shut-down", "timed out")
_END_WORDS: Mapping[int, str] = {
    api_pb2.GenericResult.GENERIC_STATUS_SUCCESS: "its program left",
    api_pb2.GenericResult.GENERIC_STATUS_FAILURE: "its program failed",
    api_pb2.GenericResult.GENERIC_STATUS_TERMINATED: "terminated",
    api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT: "its lifetime is over",
    api_pb2.GenericResult.GENERIC_STATUS_INIT_FAILURE: "it could not be started",
    api_pb2.GenericResult.GENERIC_STATUS_INTERNAL_FAILURE: "a failure inside Modal",
    api_pb2.GenericResult.GENERIC_STATUS_IDLE_TIMEOUT: "idle for too long",
    api_pb2.GenericResult.GENERIC_STATUS_MEMORY_MANAGER_EVICTION: "evicted: its host ran out of memory",
    api_pb2.GenericResult.GENERIC_STATUS_MEMORY_THRASHING_EVICTION: "evicted: it thrashed its memory",
    api_pb2.GenericResult.GENERIC_STATUS_KERNEL_OOM_KILL: "killed: out of memory",
}
_WITH_EXIT_CODE = {
    api_pb2.GenericResult.GENERIC_STATUS_SUCCESS,
    api_pb2.GenericResult.GENERIC_STATUS_FAILURE,
}


def of_reading(error: Exception, what: str) -> ProviderError:
    """A call that changes nothing, or may be repeated: whatever is not a clear refusal is Transient."""
    return _refusal(error, what) or Transient(f"Modal did not answer {what}: {_words(error)}")


def of_creating(error: Exception) -> ProviderError:
    """The create call itself: whatever is not a clear refusal may have happened."""
    if isinstance(error, vendor.NotFoundError):
        return Transient(f"Modal no longer has the App or the image: {_words(error)}")
    if isinstance(error, vendor.ConflictError) and _status(error) is None:
        return NoCapacity(f"the sandbox ended before it ran: {_words(error)}")  # the client's own, while it waits
    return _refusal(error, "the create call") or OutcomeUnknown(f"Modal did not answer create: {_words(error)}")


def of_building(error: Exception) -> ProviderError:
    """The image: a build that was cut off is tried again, one that failed will fail again."""
    if isinstance(error, vendor.ImageBuildError):
        text = _words(error)
        again = any(words in text for words in _REBUILD_WORDS)
        return Transient(f"Modal's image build was cut off: {text}") if again else ImageRefused(_reason(text))
    refusal = of_reading(error, "the image")
    return ImageRefused(refusal.message) if isinstance(refusal, InvalidRequest) else refusal


def _reason(text: str) -> str:
    """Without the exception's name, and what Modal's command line would show of its log."""
    _, _, words = text.partition(" ")
    return " ".join(words.partition("View the build logs")[0].split())


def end_words(result: api_pb2.GenericResult) -> str:
    """How a sandbox ended. An exit code is told only where it is the program's: 0 elsewhere looks like success."""
    words = _END_WORDS.get(result.status, f"status {result.status}")
    if result.status in _WITH_EXIT_CODE:
        words += f", exit code {result.exitcode}"
    return f"{words}: {result.exception}" if result.exception else words


def _refusal(error: Exception, what: str) -> ProviderError | None:
    """A definite no: nothing happened, and the class says what to do about it."""
    if isinstance(error, vendor.ResourceExhaustedError):
        return _exhausted(error)
    if _status(error) is Status.ABORTED:
        return Transient(f"Modal broke off {what}: {_words(error)}")
    for kinds, refusal in _REFUSALS:
        if isinstance(error, kinds):
            return refusal(f"Modal refuses {what}: {_words(error)}")
    return None


_REFUSALS: tuple[tuple[tuple[type[Exception], ...], Callable[[str], ProviderError]], ...] = (
    ((vendor.AuthError, vendor.PermissionDeniedError), AuthFailed),
    ((vendor.InvalidError, vendor.NotFoundError, vendor.UnimplementedError, vendor.VersionError), InvalidRequest),
)


def _exhausted(error: Exception) -> ProviderError:
    """Too fast (Modal says when to come back), no machine of this kind, or the workspace's limit."""
    words = _words(error)
    for detail in getattr(error, "_grpc_details", None) or ():
        if isinstance(detail, api_pb2.RPCRetryPolicy):
            wait_ms = max(1, math.ceil(detail.retry_after_secs * 1_000))
            return RateLimited(f"Modal throttles: {words}", retry_after_ms=wait_ms)
    if any(phrase in words.lower() for phrase in _NO_CAPACITY_WORDS):
        return NoCapacity(f"Modal has no such machine now: {words}")
    return QuotaExceeded(f"a limit of the Modal workspace is reached: {words}")


def _status(error: Exception) -> Status | None:
    status = getattr(error, "_grpc_status", None)
    return status if isinstance(status, Status) else None


def _words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
