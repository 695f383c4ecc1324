"""Requests for text: which of OpenAI's many words are understood, and which are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from app.errors import InvalidInput

# What is taken as long as it changes nothing: what it may be, by name.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1, None),
    "best_of": (1, None),
    "echo": (False, None),
    "suffix": (None, ""),
    "logprobs": (False, None, 0),
    "top_logprobs": (None, 0),
    "frequency_penalty": (0, 0.0, None),
    "presence_penalty": (0, 0.0, None),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "store": (False, None),
}
# What says nothing of the text: taken, whatever it is.
_IGNORED = frozenset(
    {
        "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "parallel_tool_calls", "reasoning_effort", "verbosity",
    }
)  # fmt: skip
_MOST_STOPS, _LONGEST_STOP = 4, 200
_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


def _stops(told: str | list[str] | None) -> list[str] | None:
    stops = [told] if isinstance(told, str) else told
    if stops is not None and (len(stops) > _MOST_STOPS or not all(0 < len(one) <= _LONGEST_STOP for one in stops)):
        raise ValueError(f"at most {_MOST_STOPS} texts of 1 to {_LONGEST_STOP} characters")
    return stops


class StreamOptions(BaseModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _TextRequest(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Annotated[str | list[str] | None, AfterValidator(_stops)] = None

    def options(self, max_tokens: int | None) -> dict[str, Any]:
        """What a server needs to know, beside the prompt. Raises InvalidInput for what is not offered."""
        for name, value in (self.model_extra or {}).items():
            _check_extra(name, value)
        told = {
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": None if self.seed is None else abs(self.seed) % 2**63,
            "stop": self.stop,
        }
        return {name: value for name, value in told.items() if value is not None}

    @property
    def tells_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(_TextRequest):
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000)

    def body(self) -> dict[str, Any]:
        """Raises InvalidInput."""
        messages = [_message(one, f"messages[{number}]") for number, one in enumerate(self.messages)]
        return {"messages": messages, **self.options(self.max_completion_tokens or self.max_tokens)}


class CompletionRequest(_TextRequest):
    prompt: str | list[Any]
    max_tokens: int | None = Field(16, ge=1, le=1_000_000)

    def body(self) -> dict[str, Any]:
        """Raises InvalidInput."""
        prompt = self.prompt
        if isinstance(prompt, list):
            if len(prompt) != 1 or not isinstance(prompt[0], str):
                raise _unsupported("prompt", "one text is taken; ask once for each, and send no tokens")
            prompt = prompt[0]
        return {"prompt": prompt, **self.options(self.max_tokens)}


def _message(message: Message, where: str) -> dict[str, str]:
    role: str | None = _ROLES.get(message.role)
    if role is None:
        raise _unsupported(f"{where}.role", f"{message.role[:40]!r} is none of {', '.join(_ROLES)}")
    told = {name for name, value in (message.model_extra or {}).items() if value not in (None, [], "")} - {"name"}
    if told:
        raise _unsupported(f"{where}.{min(told)}", "calls of tools are not offered here")
    return {"role": role, "content": _text(message.content, f"{where}.content")}


def _text(content: str | list[dict[str, Any]] | None, where: str) -> str:
    if isinstance(content, list):
        for part in content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise _unsupported(where, "only parts of type text are taken")
        return "".join(part["text"] for part in content)
    if content is None:
        raise InvalidInput(f"{where}: is missing", param=where)
    return content


def _check_extra(name: str, value: Any) -> None:
    if name in _IGNORED:
        return
    if name not in _WITHOUT_EFFECT:
        raise InvalidInput(f"Unrecognized request argument supplied: {name[:80]}", param=name[:80])
    if not any((value == one and type(value) is type(one)) or value is one for one in _WITHOUT_EFFECT[name]):
        usual = _WITHOUT_EFFECT[name][0]
        raise _unsupported(name, f"{str(value)[:60]} is not offered by this server; leave it out, or send {usual!r}")


def _unsupported(param: str, what: str) -> InvalidInput:
    return InvalidInput(f"{param}: {what}", param=param, code="unsupported_parameter")


Kind = Literal["chat", "completion"]
