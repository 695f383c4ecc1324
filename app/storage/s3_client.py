"""botocore's blocking client behind a bounded set of threads: timeouts, bounded retries, our errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import create_loader

from app.errors import AllpassError, StoreUnavailable
from app.storage.s3_errors import MISCONFIGURED, code_of, translated
from app.storage.s3_place import S3Place

T = TypeVar("T")
READ_BYTES = 1024 * 1024
_CONNECT_TIMEOUT_S = 5.0
_NO_REASON = frozenset({"400", "403", "301", "307"})


class S3Client:
    """Calls to one bucket. At most `connections` run at once; more wait their turn.

    `timeout_s` is how long the service may be silent; a call is tried `attempts` times, with growing pauses, where
    a retry can help. Threads cannot be stopped: a cancelled caller leaves its call to end by itself.
    """

    def __init__(self, place: S3Place, *, timeout_s: float, attempts: int, connections: int) -> None:
        self.place = place
        self.attempts = attempts
        self._executor = ThreadPoolExecutor(connections, thread_name_prefix="s3")
        config = Config(
            signature_version="s3v4",
            connect_timeout=min(_CONNECT_TIMEOUT_S, timeout_s),
            read_timeout=timeout_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=connections,
            # Every body is hashed into the signature, which all services check; the newer checksum headers, which some
            # refuse, are sent only where they were seen to work.
            s3={"payload_signing_enabled": True, "addressing_style": "path" if place.path_style else "virtual"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self._boto: Any = _session(place).client("s3", endpoint_url=place.endpoint, config=config)
        except (BotoCoreError, ValueError) as error:
            raise StoreUnavailable(f"the S3 settings make no client: {error}", code=MISCONFIGURED) from error

    async def call(self, operation: str, action: str, **parameters: Any) -> Any:
        """One operation on the bucket (`head_object`), its answer as botocore parses it. Raises StoreError and
        TooLarge; `action` says in messages what was going on."""
        return await self.run(partial(self.call_blocking, operation, action, **parameters))

    def call_blocking(self, operation: str, action: str, **parameters: Any) -> Any:
        """The same, for code that runs in a thread already."""
        try:
            return getattr(self._boto, operation)(Bucket=self.place.bucket, **parameters)
        except Exception as error:
            raise self.error_of(error, action) from error

    def error_of(self, error: Exception, action: str) -> AllpassError:
        """Ours for one of botocore's. A HEAD is refused without a reason: then a request that gets one is made."""
        if isinstance(error, ClientError) and code_of(error) in _NO_REASON:
            try:
                self._boto.list_objects_v2(Bucket=self.place.bucket, MaxKeys=1, Prefix=self.place.prefix)
            except (ClientError, BotoCoreError) as reason:
                return translated(reason, action, self.place)
        return translated(error, action, self.place)

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking work in one of the threads."""
        return await asyncio.wrap_future(self.start(work))

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Begin blocking work. The future belongs to the thread: cancelling it stops only what has not begun."""
        try:
            return self._executor.submit(work)
        except RuntimeError as error:
            raise StoreUnavailable("the object store is closed") from error

    async def close(self) -> None:
        """Wait for the calls under way, then let go of the connections."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
        self._boto.close()


def _session(place: S3Place) -> boto3.session.Session:
    """A session that knows our settings alone: no profile and no file of the account that runs us has a say."""
    nowhere = {"config_file": os.devnull, "credentials_file": os.devnull, "profile": None}
    core = botocore.session.Session({name: (None, None, value, None) for name, value in nowhere.items()})
    core.register_component("data_loader", _loader())
    return boto3.session.Session(
        aws_access_key_id=place.access_key,
        aws_secret_access_key=place.secret_key,
        region_name=place.region,
        botocore_session=core,
    )


@cache
def _loader() -> Any:
    """The description of S3, read from disk once: parsing it takes longer than all else here."""
    return create_loader()
