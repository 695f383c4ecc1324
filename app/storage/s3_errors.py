"""What an S3 service or the way to it answers, in our words: each message names the setting and the remedy.

Wrong settings are StoreUnavailable with the code `store_misconfigured`: an operator mends them while agents retry, so
no upload is lost to a typing error. botocore's retries are over when an error arrives here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)

from app.errors import AllpassError, ObjectCorrupt, ObjectMissing, StoreUnavailable, TooLarge
from app.storage.incoming import STORE_FULL
from app.storage.s3_place import S3Place

MISCONFIGURED = "store_misconfigured"
_OVERTAKEN = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_DAMAGED = frozenset({"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "InvalidDigest"})
_NO_ROOM = frozenset(
    {
        "QuotaExceeded",
        "InsufficientStorage",
        "StorageFull",
        "XMinioStorageFull",
        "XMinioAdminBucketQuotaExceeded",
        "InsufficientCapacity",
        "CapExceeded",
        "cap_exceeded",
        "507",
    }
)
_WRONG_REGION = frozenset(
    {
        "PermanentRedirect",
        "TemporaryRedirect",
        "AuthorizationHeaderMalformed",
        "AuthorizationQueryParametersError",
        "IllegalLocationConstraintException",
        "301",
        "307",
    }
)


def code_of(error: BaseException | None) -> str:
    """The service's error code, of botocore's error or of ours with that as its cause; else empty."""
    found = error.__cause__ if isinstance(error, AllpassError) else error
    return str(_part(found, "Error").get("Code", "")) if isinstance(found, ClientError) else ""


def status_of(error: BaseException | None) -> int:
    """The HTTP status behind an error, as `code_of`; else 0."""
    found = error.__cause__ if isinstance(error, AllpassError) else error
    return int(_part(found, "ResponseMetadata").get("HTTPStatusCode", 0)) if isinstance(found, ClientError) else 0


def lost_to_another(error: AllpassError) -> bool:
    """Whether a conditional request was refused because of another writer."""
    return code_of(error) in _OVERTAKEN


def translated(error: Exception, action: str, place: S3Place) -> AllpassError:
    """Our error for one of botocore's, raised while doing `action` ("writing 'k'"). The caller chains the cause."""
    if isinstance(error, ClientError):
        return _refused(error, action, place)
    return _unreached(error, action, place)


def _refused(error: ClientError, action: str, place: S3Place) -> AllpassError:
    code, status = code_of(error), status_of(error)
    explain = _wrong_region if code in _WRONG_REGION else _EXPLANATIONS.get(code)
    told = str(_part(error, "Error").get("Message", "")) or "no reason was given"
    answer: AllpassError = StoreUnavailable(f"the object store failed while {action}: {code or status}: {told}")
    if code in _MISSING:
        answer = ObjectMissing(f"there is no such object ({action})", param="key")
    elif code in _DAMAGED:
        answer = ObjectCorrupt(f"the bytes changed on their way while {action} ({code}): send them again")
    elif code == "EntityTooLarge":
        answer = TooLarge(f"the object store takes no object of this size while {action}", param="size_bytes")
    elif code in _NO_ROOM or status == 507:
        message = f"no room left in the object store while {action} ({code}): free some space or raise its quota"
        answer = StoreUnavailable(message + ", then retry", code=STORE_FULL)
    elif explain is not None:
        answer = _misconfigured(explain(error, place), action)
    return answer


def _unreached(error: Exception, action: str, place: S3Place) -> AllpassError:
    if isinstance(error, SSLError):
        return _misconfigured(
            f"the certificate of {place.endpoint} was not accepted ({error}); ALLPASS_S3_ENDPOINT must be a name that "
            "its certificate covers, signed by an authority this machine trusts",
            action,
        )
    if isinstance(error, (EndpointConnectionError, ConnectTimeoutError)):
        return StoreUnavailable(f"nothing answers at {place.endpoint} (ALLPASS_S3_ENDPOINT) while {action}: {error}")
    if isinstance(error, ReadTimeoutError):
        return StoreUnavailable(f"{place.endpoint} went silent while {action} (ALLPASS_S3_TIMEOUT_S): {error}")
    if isinstance(error, (HTTPClientError, OSError)):
        return StoreUnavailable(f"the connection to {place.endpoint} broke while {action}: {error}")
    if isinstance(error, BotoCoreError):
        return StoreUnavailable(f"the object store could not be asked while {action}: {error}")
    return StoreUnavailable(f"the object store's answer made no sense while {action}: {type(error).__name__}: {error}")


def _misconfigured(sentence: str, action: str) -> StoreUnavailable:
    return StoreUnavailable(f"{sentence} (while {action})", code=MISCONFIGURED)


def _wrong_region(error: ClientError, place: S3Place) -> str:
    headers: Mapping[str, Any] = _part(error, "ResponseMetadata").get("HTTPHeaders", {})
    right = _part(error, "Error").get("Region") or headers.get("x-amz-bucket-region")
    hint = f"set it to {right!r}" if right else "set it to the bucket's region (and ALLPASS_S3_ENDPOINT to match)"
    return f"ALLPASS_S3_REGION={place.region!r} is not the region of bucket {place.bucket!r}: {hint}"


def _clock(error: ClientError, _place: S3Place) -> str:
    now, theirs = (_part(error, "Error").get(name) for name in ("RequestTime", "ServerTime"))
    apart = f" (the service says {theirs}, this machine {now})" if theirs and now else ""
    date = _part(error, "ResponseMetadata").get("HTTPHeaders", {}).get("date")
    if not apart and date:
        apart = f" (the service says {date})"
    return f"this machine's clock is off by too much for signed requests{apart}: set it right and keep it so (NTP)"


def _wrong_key(_error: ClientError, place: S3Place) -> str:
    return f"{place.endpoint} does not know the access key in ALLPASS_S3_ACCESS_KEY"


def _wrong_secret(_error: ClientError, _place: S3Place) -> str:
    return "ALLPASS_S3_SECRET_KEY does not belong to ALLPASS_S3_ACCESS_KEY (the signature does not match)"


def _no_bucket(_error: ClientError, place: S3Place) -> str:
    return f"there is no bucket {place.bucket!r} at {place.endpoint}: create it or set ALLPASS_S3_BUCKET"


def _not_allowed(_error: ClientError, place: S3Place) -> str:
    return (
        f"access to bucket {place.bucket!r} is denied: ALLPASS_S3_ACCESS_KEY needs s3:ListBucket on it and "
        f"s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload on {place.bucket}/{place.prefix}*"
    )


def _expired(_error: ClientError, _place: S3Place) -> str:
    return "the credentials have expired: set ALLPASS_S3_ACCESS_KEY and ALLPASS_S3_SECRET_KEY to permanent ones"


def _part(error: ClientError, name: str) -> Mapping[str, Any]:
    response: Mapping[str, Any] = error.response
    found: Mapping[str, Any] = response.get(name, {})
    return found


_EXPLANATIONS: Mapping[str, Callable[[ClientError, S3Place], str]] = {
    "RequestTimeTooSkewed": _clock,
    "RequestExpired": _clock,
    "InvalidAccessKeyId": _wrong_key,
    "SignatureDoesNotMatch": _wrong_secret,
    "NoSuchBucket": _no_bucket,
    "InvalidBucketName": _no_bucket,
    "AccessDenied": _not_allowed,
    "AllAccessDisabled": _not_allowed,
    "AccountProblem": _not_allowed,
    "Forbidden": _not_allowed,
    "403": _not_allowed,
    "ExpiredToken": _expired,
    "InvalidToken": _expired,
    "TokenRefreshRequired": _expired,
}
