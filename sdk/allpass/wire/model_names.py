"""Names that models have at the OpenAI-compatible door."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allpass.wire.base import Request, Response

LONGEST_MODEL_NAME = 100
MODEL_NAME_PATTERN = r"^(?!ft:)[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$"
_UNSHOWABLE = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_HUB_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
OPEN_MODEL_PATTERN = rf"^(/[^{_UNSHOWABLE}]{{1,400}}|{_HUB_NAME}/{_HUB_NAME})$"
OpenModel = Annotated[str, StringConstraints(max_length=401, pattern=OPEN_MODEL_PATTERN)]
ModelNameSource = Literal["start", "owner"]
_OPEN = "an open model (`org/name` of the Hugging Face hub, or a folder that machines have)"


class ModelName(Response):
    """What a name means to clients of OpenAI."""

    name: str
    model: str | None = Field(description=f"{_OPEN}; null: the name is not known")
    source: ModelNameSource = Field(description="`start`: what it means from the start; `owner`: what an owner has set")
    from_start: str | None = Field(
        description="what it means from the start, and again when it is reset; null: nothing"
    )


class ModelNameRequest(Request):
    """PUT /v1/model-names/{name}: what the name means from now on."""

    model: OpenModel | None = Field(description=f"{_OPEN}; null: the name is not known any more")
