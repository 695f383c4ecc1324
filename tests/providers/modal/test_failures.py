"""What Modal's client raises, in our words."""

from __future__ import annotations

import pytest
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
from providers.modal.failures import end_words, of_building, of_creating, of_reading, vendor

Result = api_pb2.GenericResult


def raised(kind: type[Exception], message: str, status: Status | None = None, *details: object) -> Exception:
    """An exception as the client raises it: with the status of the call, or, where it is the client's own, without."""
    error = kind(message)
    if status is not None:
        error._grpc_status = status  # type: ignore[attr-defined]  # as their client sets it
        error._grpc_details = list(details)  # type: ignore[attr-defined]  # as their client sets it
    return error


@pytest.mark.parametrize(
    ("error", "created", "read"),
    [
        (raised(vendor.AuthError, "bad token", Status.UNAUTHENTICATED), AuthFailed, AuthFailed),
        (raised(vendor.PermissionDeniedError, "no", Status.PERMISSION_DENIED), AuthFailed, AuthFailed),
        (raised(vendor.InvalidError, "gpu", Status.INVALID_ARGUMENT), InvalidRequest, InvalidRequest),
        (raised(vendor.ConflictError, "image", Status.FAILED_PRECONDITION), InvalidRequest, InvalidRequest),
        (raised(vendor.ConflictError, "again", Status.ABORTED), Transient, Transient),
        (raised(vendor.ConflictError, "failed to start"), NoCapacity, InvalidRequest),
        (raised(vendor.UnimplementedError, "old", Status.UNIMPLEMENTED), InvalidRequest, InvalidRequest),
        (raised(vendor.NotFoundError, "app", Status.NOT_FOUND), Transient, InvalidRequest),
        (raised(vendor.ResourceExhaustedError, "limit", Status.RESOURCE_EXHAUSTED), QuotaExceeded, QuotaExceeded),
        (raised(vendor.ResourceExhaustedError, "Insufficient capacity to create sandbox."), NoCapacity, NoCapacity),
        (raised(vendor.ServiceError, "down", Status.UNAVAILABLE), OutcomeUnknown, Transient),
        (raised(vendor.InternalError, "bug", Status.INTERNAL), OutcomeUnknown, Transient),
        (raised(vendor.DataLossError, "lost", Status.DATA_LOSS), OutcomeUnknown, Transient),
        (vendor.ConnectionError("refused"), OutcomeUnknown, Transient),
        (vendor.ClientClosed("closed"), OutcomeUnknown, Transient),
        (OSError("broken pipe"), OutcomeUnknown, Transient),
    ],
)
def test_each_failure_says_what_to_do(
    error: Exception, created: type[ProviderError], read: type[ProviderError]
) -> None:
    """A clear refusal is a refusal; anything else leaves a create call unknown, and a look to be repeated."""
    assert type(of_creating(error)) is created
    assert type(of_reading(error, "for it")) is read
    assert str(error) in of_creating(error).message


def test_throttling_tells_when_to_come_back() -> None:
    """Modal's own waiting time is passed on, rounded up to a millisecond."""
    policy = api_pb2.RPCRetryPolicy(retry_after_secs=1.2504)
    error = raised(vendor.ResourceExhaustedError, "slow down", Status.RESOURCE_EXHAUSTED, policy)
    limited = of_creating(error)
    assert isinstance(limited, RateLimited)
    assert limited.retry_after_ms == 1_251


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Image build for im-1 failed.", ImageRefused),
        ("Image build for im-1 terminated due to external shut-down. Please try again.", Transient),
        ("Image build for im-1 timed out. Please try again with a larger `timeout` parameter.", Transient),
    ],
)
def test_an_image_that_failed_will_fail_again(message: str, kind: type[ProviderError]) -> None:
    """A build that was cut off is worth another try, one that failed is not."""
    assert type(of_building(vendor.ImageBuildError(message, "im-1"))) is kind


def test_an_exit_code_is_told_only_where_it_is_the_programs() -> None:
    """Exit code 0 of a sandbox that Modal lost is not shown: it would look like success."""
    lost = Result(status=Result.GENERIC_STATUS_INTERNAL_FAILURE, exitcode=0, exception="worker lost")
    assert end_words(lost) == "a failure inside Modal: worker lost"
    assert end_words(Result(status=Result.GENERIC_STATUS_FAILURE, exitcode=3)) == "its program failed, exit code 3"
    assert "0" not in end_words(Result(status=Result.GENERIC_STATUS_IDLE_TIMEOUT))


def test_every_end_that_modal_knows_has_words() -> None:
    """No end is told as a bare number, so a new one in Modal's client is noticed here."""
    for name, value in Result.GenericStatus.items():
        if value != Result.GENERIC_STATUS_UNSPECIFIED:
            assert "status" not in end_words(Result(status=value)), name
