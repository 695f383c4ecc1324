"""The clients' methods about names of models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from pydantic import ValidationError

from allpass import calls, flows
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.errors import InvalidInput
from allpass.wire.model_names import ModelName, ModelNameRequest


class ModelNameMethods(Blocking):
    """Of `Client`."""

    def model_names(self) -> Iterator[ModelName]:
        """What names of models mean to clients of OpenAI, by name."""
        return self._each(flows.every(self._protocol, calls.list_model_names))

    def set_model_name(self, name: str, model: str | None) -> ModelName:
        """`model`: an open model (`org/name`), or None: the name is not known any more. Needs scope `owner`."""
        return self._call(calls.set_model_name(name, _request(model)))

    def reset_model_name(self, name: str) -> ModelName:
        """The name means again what it means from the start. Needs a key with scope `owner`."""
        return self._call(calls.reset_model_name(name))


class AsyncModelNameMethods(Awaited):
    """Of `AsyncClient`: as `ModelNameMethods`, awaited."""

    def model_names(self) -> AsyncIterator[ModelName]:
        """As `Client.model_names`."""
        return self._each(flows.every(self._protocol, calls.list_model_names))

    async def set_model_name(self, name: str, model: str | None) -> ModelName:
        """As `Client.set_model_name`."""
        return await self._call(calls.set_model_name(name, _request(model)))

    async def reset_model_name(self, name: str) -> ModelName:
        """As `Client.reset_model_name`."""
        return await self._call(calls.reset_model_name(name))


def _request(model: str | None) -> ModelNameRequest:
    try:
        return ModelNameRequest(model=model)
    except ValidationError:
        raise InvalidInput(
            f"model: {model!r} is not an open model: org/name of the Hugging Face hub, or a folder that machines have",
            hint='set_model_name("gpt-4o-mini", "Qwen/Qwen2.5-7B-Instruct")',
        ) from None
