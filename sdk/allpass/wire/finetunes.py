"""A fine-tuning by the built-in recipe, submitted without the SDK: a file of rows, and what is done with it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from allpass.wire.base import Deadline, Name, Real, Request, Response, Sha256
from allpass.wire.plan import ConfigKey
from allpass.wire.template import Template

Model = Annotated[str, StringConstraints(min_length=1, max_length=500)]
SettingName = Annotated[str, StringConstraints(max_length=100)]


class RowProblem(Response):
    """A row that cannot be trained on: where it is in the file, what is wrong, and what would be accepted."""

    where: str
    message: str
    hint: str | None = None


class DataReport(Response):
    """What a file of rows was found to hold. With problems nothing of it is kept, and `sha256` is null."""

    sha256: str | None = Field(description="to name it by when a fine-tuning is submitted")
    name: str
    size_bytes: int
    rows: int
    shape: str | None = Field(description="messages, prompt, text, labelled, pairs ...: what the rows are")
    labels: int = Field(description="different labels, of rows for a classifier")
    characters: int = Field(description="of all texts; a token is about four of English")
    ignored: list[str] = Field(description="fields that nothing is learned from")
    problems: list[RowProblem] = Field(description="the first ten")
    problem_count: int


class FinetuneData(Request):
    """Rows that were sent before, within the hour."""

    sha256: Sha256
    name: Name = Field(description="of the file; its end says how it is read: .jsonl, .json, .csv or .parquet")


class FinetuneRequest(Request):
    """Fine-tune a model on rows, by the built-in recipe: the job that `allpass finetune` submits."""

    data: FinetuneData
    model: Model = Field(description="a name of the Hugging Face hub, or the path of a folder that machines have")
    config: dict[ConfigKey, Any] | None = Field(
        None, max_length=1000, description="the model's config.json, from which follows how much memory it needs"
    )
    method: Literal["lora", "qlora", "full"] = "lora"
    held_out: Annotated[Real, Field(ge=0, lt=1)] = Field(0.1, description="the share of rows to measure with")
    settings: dict[SettingName, Any] = Field(
        default_factory=dict, max_length=100, description="others of the recipe by name: epochs, batch_size, seed ..."
    )
    template: Template = Field(default_factory=Template, description="caps, GPU, labels: what the recipe leaves open")
    name: Name | None = None
    soft_deadline: Deadline | None = None
    app_name: Name | None = Field(None, description="default: of model and data")
    user_name: Name | None = Field(None, description="default: the name of the API key")
