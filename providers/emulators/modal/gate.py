"""The wire: a gRPC service made of plain functions, with a guard and scripted faults before and after each call.

The client repeats a call that fails, under one idempotency key. A fault strikes a whole call, with all its repetitions,
unless the switch `strike_each_attempt` is on: then the next attempt may get through, as after a short disturbance.
"""

from __future__ import annotations

import abc
import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpclib import GRPCError, Status
from grpclib.encoding.base import StatusDetailsCodecBase
from grpclib.server import Stream
from modal_proto import api_pb2

from providers.emulators.faults import DROP, ERROR, HANG, SLOW, Fault, FaultScript, When
from providers.emulators.switches import Switches

THROTTLE = "throttle"
LIMIT = "limit"
_REMEMBERED_CALLS = 1_000


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of a call. `fault` is one that the function itself has to act on."""

    name: str
    metadata: Mapping[str, str]
    fault: Fault | None = None

    @property
    def idempotency_key(self) -> str:
        return str(self.metadata.get("x-idempotency-key", ""))

    def shaped(self, kind: str) -> Fault | None:
        """The fault, if it is of this kind."""
        return self.fault if self.fault is not None and self.fault.kind == kind else None


Unary = Callable[[Any, Call], Awaitable[Any]]
Streaming = Callable[[Any, Call], AsyncIterator[Any]]
Guard = Callable[[Call], None]


class Gate:
    """Passes calls on to their functions."""

    def __init__(self, faults: FaultScript, switches: Switches, ops: Mapping[str, str]) -> None:
        """`ops` tells the operation (as faults name it) of each RPC that can be struck."""
        self._faults = faults
        self._switches = switches
        self._ops = ops
        self._struck: OrderedDict[str, Fault] = OrderedDict()

    def service(
        self, base: type[abc.ABC], guard: Guard, unary: Mapping[str, Unary], streaming: Mapping[str, Streaming]
    ) -> Any:
        """An object of the generated `base`; an RPC without a function answers UNIMPLEMENTED."""
        unknown = (set(unary) | set(streaming)) - set(base.__abstractmethods__)
        if unknown:
            raise LookupError(f"{base.__name__} has no RPC {', '.join(sorted(unknown))}")
        methods = {name: self._method(name, guard, unary, streaming) for name in base.__abstractmethods__}
        return type(f"Emulated{base.__name__}", (base,), methods)()

    def _method(
        self, name: str, guard: Guard, unary: Mapping[str, Unary], streaming: Mapping[str, Streaming]
    ) -> Callable[[Any, Stream[Any, Any]], Awaitable[None]]:
        async def rpc(_service: Any, stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            call = Call(name, {key: str(value) for key, value in (stream.metadata or {}).items()})
            guard(call)
            call = Call(name, call.metadata, self._fault(call))
            if name not in unary and name not in streaming:
                raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not emulated")
            if await _strike(stream, call.fault, When.BEFORE):
                return
            if name in streaming:
                async for message in streaming[name](request, call):
                    await stream.send_message(message)
                return
            reply = await unary[name](request, call)
            if not await _strike(stream, call.fault, When.AFTER):
                await stream.send_message(reply)

        return rpc

    def _fault(self, call: Call) -> Fault | None:
        op = self._ops.get(call.name)
        if op is None:
            return None
        key = call.idempotency_key
        if key in self._struck and not self._switches["strike_each_attempt"]:
            return self._struck[key]
        fault = self._faults.take(op)
        if fault is not None and key:
            self._struck[key] = fault
            while len(self._struck) > _REMEMBERED_CALLS:
                self._struck.popitem(last=False)
        return fault


async def _strike(stream: Stream[Any, Any], fault: Fault | None, when: When) -> bool:
    """Let a fault happen that needs nothing of the call; True when there is nothing left to answer."""
    if fault is None or fault.when is not when:
        return False
    if fault.kind == DROP:
        await stream.cancel()
        return True
    if fault.kind == HANG:
        await asyncio.Event().wait()  # until the caller leaves, or we close
    elif fault.kind == SLOW:
        await asyncio.sleep(fault.ms / 1_000)
    elif fault.kind == ERROR:
        message = str(fault.args.get("message", "something went wrong (scripted)"))
        raise GRPCError(_status(fault.args.get("status")), message)
    elif fault.kind == THROTTLE:
        policy = api_pb2.RPCRetryPolicy(retry_after_secs=fault.ms / 1_000)
        raise GRPCError(Status.RESOURCE_EXHAUSTED, "too many requests", [policy])
    elif fault.kind == LIMIT:
        message = str(fault.args.get("message", "the workspace has reached its limit of GPUs"))
        raise GRPCError(Status.RESOURCE_EXHAUSTED, message)
    return False


def _status(told: object) -> Status:
    """A gRPC status by its name; a number (of HTTP, as other emulators have it) is the server's own failure."""
    if isinstance(told, str) and told in Status.__members__:
        return Status[told]
    return Status.INTERNAL if isinstance(told, int) else Status.UNAVAILABLE


class DetailsCodec(StatusDetailsCodecBase):
    """Details of an error, such as when to come back, the way Modal's client reads them."""

    def encode(self, status: Status, message: str | None, details: Any) -> bytes:
        told = api_pb2.RPCStatus(code=status.value, message=message or "")
        for detail in details or ():
            told.details.add().Pack(detail, type_url_prefix="type.modal.com/")
        return bytes(told.SerializeToString())

    def decode(self, status: Status, message: str | None, data: bytes) -> Sequence[Any]:
        raise NotImplementedError("a server sends details, it reads none")
