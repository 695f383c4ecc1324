"""Where an S3 store is and who we are there: endpoint, bucket, prefix, credentials, and the addresses made of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, urlsplit

from app.errors import InvalidInput
from app.storage.keys import check_prefix

Addressing = Literal["auto", "path", "virtual"]
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")


@dataclass(frozen=True, slots=True)
class S3Place:
    """One bucket, or the part of it below `prefix`. Build it with `s3_place`, which checks it.

    `public_endpoint` is the address that signed URLs carry: it differs where agents reach the service under
    another name than we do. Endpoints have no `/` at their end; `prefix` is empty or ends in one.
    """

    endpoint: str
    public_endpoint: str
    region: str
    bucket: str
    prefix: str
    path_style: bool
    access_key: str
    secret_key: str = field(repr=False)

    def object_key(self, key: str) -> str:
        """The key in the bucket."""
        return self.prefix + key

    def address(self, key: str, *, public: bool) -> tuple[str, str, str]:
        """Scheme, host and (quoted) path of an object."""
        scheme, host = urlsplit(self.public_endpoint if public else self.endpoint)[:2]
        path = "/" + quote(self.object_key(key), safe="/-_.~")
        return (scheme, host, f"/{self.bucket}{path}") if self.path_style else (scheme, f"{self.bucket}.{host}", path)


def s3_place(
    *,
    endpoint: str | None,
    public_endpoint: str | None,
    region: str,
    bucket: str,
    prefix: str,
    addressing: Addressing,
    access_key: str,
    secret_key: str,
) -> S3Place:
    """The checked place. Without an endpoint it is AWS in `region`.

    `auto` puts the bucket into the host on AWS (unless its name has dots, which no certificate covers) and into the
    path elsewhere. Raises InvalidInput naming the setting.
    """
    if not _BUCKET.match(bucket):
        raise InvalidInput(
            f"{bucket!r} is no bucket name: 3-63 of a-z 0-9 . - are", param="ALLPASS_S3_BUCKET", code="store_settings"
        )
    prefix = prefix.strip("/")
    try:
        check_prefix(prefix)
    except InvalidInput as error:
        raise InvalidInput(error.message, param="ALLPASS_S3_PREFIX", code="store_settings") from error
    own = _endpoint(endpoint, "ALLPASS_S3_ENDPOINT") if endpoint else _aws_endpoint(region)
    path_style = addressing == "path" or (addressing == "auto" and (endpoint is not None or "." in bucket))
    return S3Place(
        endpoint=own,
        public_endpoint=_endpoint(public_endpoint, "ALLPASS_S3_PUBLIC_ENDPOINT") if public_endpoint else own,
        region=region,
        bucket=bucket,
        prefix=prefix and prefix + "/",
        path_style=path_style,
        access_key=access_key,
        secret_key=secret_key,
    )


def _aws_endpoint(region: str) -> str:
    if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]", region):
        raise InvalidInput(
            f"{region!r} is no AWS region (such as eu-central-1); for another service set ALLPASS_S3_ENDPOINT",
            param="ALLPASS_S3_REGION",
            code="store_settings",
        )
    return f"https://s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")


def _endpoint(url: str, setting: str) -> str:
    """Host and port only: a path would not be part of what services sign. Default ports are dropped, as clients do."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.username:
        raise InvalidInput(
            f"{url!r} is no endpoint: give http(s)://host[:port] without a path", param=setting, code="store_settings"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, default) else "")
