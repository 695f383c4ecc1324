"""Modal's client, deaf to everything but what it is told by us.

The client reads `~/.modal.toml` (or MODAL_CONFIG_PATH) when it is imported, and variables called MODAL_... at every
use: a server's address, an environment, a proxy, how long to wait when throttled. Allpass has its own settings, and a
variable that somebody exported must not change where money is spent. So the import happens without these variables and
with an empty file, and the client's configuration object then answers with its own defaults and the few values below.
Nothing is left in `os.environ`, which processes started by us inherit.

The server's address and the token are given to each `modal.Client` directly, so that two accounts, or Modal and an
emulator, can be used from one process; `Client.from_credentials` does the same with an address from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = [
    "MODAL_SERVER_URL",
    "build_log",
    "greet",
    "is_first_generation",
    "list_page",
    "modal",
    "open_client",
    "result",
    "tags",
]

_FIXED: dict[str, Any] = {
    "max_throttle_wait": 0,  # a throttled call says so at once: our own queue waits, not a coroutine in theirs
    "disable_api_proxy": True,
}


@contextmanager
def _without_configuration() -> Iterator[None]:
    hidden = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith("MODAL_")}
    os.environ["MODAL_CONFIG_PATH"] = os.devnull
    try:
        yield
    finally:
        del os.environ["MODAL_CONFIG_PATH"]
        os.environ.update(hidden)


with _without_configuration():
    import modal
    import modal.config
    import modal.exception
    from modal._utils.async_utils import synchronize_api
    from modal._utils.grpc_utils import Retry
    from modal_proto import api_pb2


def _configured(key: str, **_where: object) -> Any:
    """In place of `Config.get`: neither environment nor file."""
    return _FIXED.get(key, modal.config._SETTINGS[key].default)


modal.config.config.get = _configured  # type: ignore[method-assign]  # see above

MODAL_SERVER_URL: str = modal.config.DEFAULT_SERVER_URL
_MOST_LOG_ENTRIES = 200
_ONCE = Retry(max_retries=1)
Answer = TypeVar("Answer")


async def open_client(server_url: str, token_id: str, token_secret: str) -> modal.Client:
    """A client of this account, connected; nobody else's calls go through it. Tries for up to a minute."""
    client = modal.Client(server_url, api_pb2.CLIENT_TYPE_CLIENT, (token_id, token_secret))
    try:
        await client.__aenter__()  # type: ignore[no-untyped-call]  # its stubs lack this
    except BaseException:
        await client.close.aio()
        raise
    return client


async def greet(client: modal.Client) -> None:
    """Have the token checked. Raises what the client raises."""
    await client.hello.aio()  # type: ignore[no-untyped-call]  # its stubs lack this


# What the client's public objects do not tell: when a sandbox was made, began and ended, its name, how it ended. These
# run in the client's own event loop, on its own connection, with its own headers; a contract test pins them.


async def _list_page(client: Any, request: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
    return await _with_session_token(client, lambda headers: client._stub.SandboxListV2(request, metadata=headers))


async def _result(client: Any, sandbox_id: str) -> api_pb2.SandboxWaitResponse:
    request = api_pb2.SandboxWaitRequest(sandbox_id=sandbox_id, timeout=0)
    if is_first_generation(sandbox_id):
        response: api_pb2.SandboxWaitResponse = await client._stub.SandboxWait(request, retry=_ONCE)
        return response
    return await _with_session_token(client, lambda headers: client._stub.SandboxWaitV2(request, metadata=headers))


async def _tags(client: Any, sandbox_id: str) -> api_pb2.SandboxTagsGetResponse:
    request = api_pb2.SandboxTagsGetRequest(sandbox_id=sandbox_id)
    if is_first_generation(sandbox_id):
        response: api_pb2.SandboxTagsGetResponse = await client._stub.SandboxTagsGet(request, retry=_ONCE)
        return response
    return await _with_session_token(client, lambda headers: client._stub.SandboxTagsGetV2(request, metadata=headers))


async def _build_log(client: Any, image_id: str) -> str:
    """What the builder wrote; the client itself shows it on a terminal alone."""
    request = api_pb2.ImageJoinStreamingRequest(image_id=image_id, timeout=5, include_logs_for_finished=True)
    told: list[str] = []
    async for response in client._stub.ImageJoinStreaming.unary_stream(request):
        told += [entry.data for entry in response.task_logs if entry.data]
        if response.eof or response.result.status:
            break
    return "".join(told[-_MOST_LOG_ENTRIES:])


async def _with_session_token(client: Any, call: Callable[[list[tuple[str, str]]], Awaitable[Answer]]) -> Answer:
    """These calls want a short-lived token besides the account's. One that is refused is fetched anew, once."""
    tokens = client._auth_token_manager
    try:
        return await call([("x-modal-auth-token", await tokens.get_token())])
    except modal.exception.AuthError:
        await tokens.reset()
        return await call([("x-modal-auth-token", await tokens.get_token())])


def is_first_generation(sandbox_id: str) -> bool:
    """Sandboxes with GPUs have ids of `sb-` and 22 letters and digits; all others are of the second generation."""
    kind, _, rest = sandbox_id.partition("-")
    return kind == "sb" and len(rest) == 22 and rest.isascii() and rest.isalnum()


build_log: Any = synchronize_api(_build_log)  # type: ignore[no-untyped-call]  # its stubs lack this
list_page: Any = synchronize_api(_list_page)  # type: ignore[no-untyped-call]  # its stubs lack this
result: Any = synchronize_api(_result)  # type: ignore[no-untyped-call]  # its stubs lack this
tags: Any = synchronize_api(_tags)  # type: ignore[no-untyped-call]  # its stubs lack this
