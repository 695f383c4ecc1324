"""Every error that Allpass raises on purpose.

AllpassError
├── UserError               the caller can mend it; shown as it is
│   ├── InvalidInput        422  a field, its value, and what would be accepted
│   ├── Unauthenticated     401
│   ├── Forbidden           403
│   ├── NotFound            404  also for what belongs to another project
│   ├── Conflict            409  the thing is not in a state that allows this
│   ├── TooLarge            413
│   └── TooManyRequests     429  ask again after `retry_after_ms`
├── Fenced                  409  a writer that no longer holds its epoch, lease or term
├── ProviderError           what a rental company answered, in our words
│   ├── NoCapacity          nothing of this kind to rent now: try the next offer
│   ├── QuotaExceeded       the account's limit: try another provider
│   ├── RateLimited         ask again after `retry_after_ms`
│   ├── AuthFailed          credentials refused: stop and alarm, never fail over
│   ├── InvalidRequest      our request is wrong: retrying cannot help
│   │   └── ImageRefused    the image cannot be built there
│   ├── Transient           no effect happened; may be retried
│   │   └── ImageNotBuilt   the image is still being built there
│   ├── OfferGone           that offer was taken: try another
│   ├── PriceMoved          the offer costs more than was agreed
│   └── OutcomeUnknown      it may or may not have happened: list before any retry
├── StoreError              the object store
│   ├── ObjectMissing
│   ├── ObjectCorrupt       the bytes are not what their hash says
│   └── StoreUnavailable
├── Unavailable             503  a part that we need does not answer; retry
└── InvariantBroken         a bug: what must never be, is
"""

from __future__ import annotations

from typing import ClassVar


class AllpassError(Exception):
    """Root of the tree. `code` is stable and documented; `message` is for people.

    `param` names the offending field as the caller wrote it (`resources.gpus`), when there is one.
    `retryable` says whether the same request may succeed later.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.error_code = code or self.code


class UserError(AllpassError):
    code = "invalid_request"
    http_status = 400


class InvalidInput(UserError):
    code = "invalid_input"
    http_status = 422


class Unauthenticated(UserError):
    code = "unauthenticated"
    http_status = 401


class Forbidden(UserError):
    code = "forbidden"
    http_status = 403


class NotFound(UserError):
    code = "not_found"
    http_status = 404


class Conflict(UserError):
    code = "conflict"
    http_status = 409


class TooLarge(UserError):
    code = "too_large"
    http_status = 413


class TooManyRequests(UserError):
    code = "rate_limited"
    http_status = 429
    retryable = True

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Fenced(AllpassError):
    code = "fenced"
    http_status = 409


class ProviderError(AllpassError):
    code = "provider_error"
    http_status = 502


class NoCapacity(ProviderError):
    code = "no_capacity"
    retryable = True


class QuotaExceeded(ProviderError):
    code = "quota_exceeded"


class RateLimited(ProviderError):
    code = "provider_rate_limited"
    retryable = True

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class AuthFailed(ProviderError):
    code = "provider_auth_failed"


class InvalidRequest(ProviderError):
    code = "provider_invalid_request"


class Transient(ProviderError):
    code = "provider_transient"
    retryable = True


class ImageNotBuilt(Transient):
    code = "image_not_built"


class ImageRefused(InvalidRequest):
    """`log`: the builder's last lines."""

    code = "image_refused"

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class OfferGone(ProviderError):
    code = "offer_gone"
    retryable = True


class PriceMoved(ProviderError):
    code = "price_moved"
    retryable = True


class OutcomeUnknown(ProviderError):
    code = "outcome_unknown"


class StoreError(AllpassError):
    code = "store_error"
    http_status = 502


class ObjectMissing(StoreError):
    code = "object_missing"
    http_status = 404


class ObjectCorrupt(StoreError):
    code = "object_corrupt"


class StoreUnavailable(StoreError):
    code = "store_unavailable"
    http_status = 503
    retryable = True


class Unavailable(AllpassError):
    code = "unavailable"
    http_status = 503
    retryable = True


class InvariantBroken(AllpassError):
    code = "invariant_broken"
