"""The connection to Modal: opened when it is needed, asked within a deadline, its failures told in our words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from modal_proto import api_pb2

from app.errors import Transient
from providers.modal import sdk
from providers.modal.deadlines import Deadline, Late, OverdueCalls
from providers.modal.failures import of_reading, vendor
from providers.modal.listing import TooLong, list_all
from providers.modal.sdk import modal

Ask = Callable[[modal.Client], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Account:
    """Whose money it is. `environment` empty: the workspace's default one."""

    token_id: str
    token_secret: str
    server_url: str = sdk.MODAL_SERVER_URL
    app: str = "allpass"
    environment: str = ""


class ModalLink:
    """One account's connection. Calls that outlive their deadline are left to themselves until `close`."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._leftovers = OverdueCalls()
        self._opening: asyncio.Task[modal.Client] | None = None
        self._closed = False

    async def client(self, deadline: Deadline) -> modal.Client:
        """Modal's client. To open it is to connect, for up to a minute: all who ask wait for the same attempt, each

        no longer than he has time. Raises Transient when there is no connection.
        """
        if self._closed:
            raise Transient("the connection to Modal has been closed")
        if self._opening is None or _has_failed(self._opening):
            account = self.account
            opening = sdk.open_client(account.server_url, account.token_id, account.token_secret)
            self._opening = asyncio.get_running_loop().create_task(opening)
            self._opening.add_done_callback(_has_failed)
        done, _ = await asyncio.wait({self._opening}, timeout=deadline.left_s)
        if not done:
            raise Transient(f"Modal cannot be reached at {self.account.server_url}")
        if self._opening.cancelled():
            raise Transient("the connection to Modal has been closed")
        try:
            return self._opening.result()
        except Exception as error:
            raise of_reading(error, "when connecting") from error

    async def within(self, deadline: Deadline, ask: Ask) -> Any:
        """An answer, or what the client raises; Late when there is none in time."""
        return await self._leftovers.within(deadline, ask(await self.client(deadline)))

    async def look(self, deadline: Deadline, what: str, ask: Ask) -> Any:
        """An answer. That something is not there passes through in the client's words, all else becomes ours."""
        client = await self.client(deadline)
        try:
            return await self._leftovers.within(deadline, ask(client))
        except (vendor.NotFoundError, vendor.ExecutionError):
            raise
        except Late as error:
            raise Transient(f"Modal did not answer in time when asked {what}") from error
        except Exception as error:
            raise of_reading(error, f"when asked {what}") from error

    async def read(self, deadline: Deadline, what: str, ask: Ask) -> Any:
        """An answer, of a call to which even "not found" is an error."""
        try:
            return await self.look(deadline, what, ask)
        except (vendor.NotFoundError, vendor.ExecutionError) as error:
            raise of_reading(error, f"when asked {what}") from error

    async def sandboxes(
        self, deadline: Deadline, tags: dict[str, str], *, app_id: str = "", finished: bool = False
    ) -> list[api_pb2.SandboxInfo]:
        """Those with all of these tags, in one App or in the whole environment; live ones, or `finished` ones too."""
        request = api_pb2.SandboxListRequest(
            app_id=app_id,
            environment_name=self.account.environment,
            include_finished=finished,
            tags=[api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()],
        )

        async def page(wanted: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
            def ask(client: modal.Client) -> Coroutine[Any, Any, Any]:
                answer: Coroutine[Any, Any, Any] = sdk.list_page.aio(client, wanted)
                return answer

            shown: api_pb2.SandboxListResponse = await self.read(deadline, "for the sandboxes", ask)
            return shown

        try:
            return await list_all(page, request)
        except TooLong as error:
            raise Transient(f"Modal's listing does not end: {error}") from error

    async def close(self) -> None:
        """Close the connection and give up on what is left; harmless when repeated."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None and not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
        elif opening is not None and not _has_failed(opening):
            await opening.result().close.aio()
        await self._leftovers.end()


def _has_failed(opening: asyncio.Task[modal.Client]) -> bool:
    """Also looks at the exception, which nobody may have been waiting for."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None)
