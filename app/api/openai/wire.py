"""What this door is asked and answers, in OpenAI's words."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Item = TypeVar("Item", bound=BaseModel)
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data"]
Status = Literal["validating_files", "queued", "running", "succeeded", "failed", "cancelled"]
_Id = Annotated[str, StringConstraints(min_length=1, max_length=100)]
_Key = Annotated[str, StringConstraints(max_length=64)]
_Value = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[dict[_Key, _Value], Field(max_length=16)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ListOf(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"]
    status_details: str | None = None


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class ExpiresAfter(_Asked):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class UploadCreate(_Asked):
    bytes: int = Field(ge=1)
    filename: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    mime_type: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class UploadComplete(_Asked):
    part_ids: Annotated[list[_Id], Field(min_length=1, max_length=10_000)]
    md5: Annotated[str, StringConstraints(max_length=64)] | None = None


class UploadObject(BaseModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None = None


class UploadPart(BaseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


Epochs = Literal["auto"] | Annotated[int, Field(ge=1, le=50)]
Batch = Literal["auto"] | Annotated[int, Field(ge=1, le=256)]
Rate = Literal["auto"] | Annotated[float, Field(gt=0, le=1000)]
Beta = Literal["auto"] | Annotated[float, Field(gt=0, le=2)]


class Hyperparameters(_Asked):
    n_epochs: Epochs = "auto"
    batch_size: Batch = "auto"
    learning_rate_multiplier: Rate = "auto"


class DpoHyperparameters(Hyperparameters):
    beta: Beta = "auto"


class Supervised(_Asked):
    hyperparameters: Hyperparameters = Field(default_factory=Hyperparameters)


class Dpo(_Asked):
    hyperparameters: DpoHyperparameters = Field(default_factory=DpoHyperparameters)


class Method(_Asked):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: Dpo | None = None
    reinforcement: Any = None


class WandbAsked(_Asked):
    project: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    entity: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    tags: (
        Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=64)]], Field(max_length=10)] | None
    ) = None


class Integration(BaseModel):
    """Other kinds than W&B are refused by their name, whatever else they say."""

    model_config = ConfigDict(extra="allow")
    type: Annotated[str, StringConstraints(max_length=100)]
    wandb: WandbAsked | None = None


class WandbTold(BaseModel):
    project: str
    name: str | None = None
    entity: str | None = None
    tags: list[str] | None = None


class IntegrationTold(BaseModel):
    type: Literal["wandb"] = "wandb"
    wandb: WandbTold


class Ours(_Asked):
    """What Allpass has beside: the client sends it as `extra_body={"allpass": {...}}`."""

    deadline: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    max_cost_usd: float | None = Field(None, gt=0)
    gpu: Annotated[str, StringConstraints(min_length=1, max_length=40)] | None = None
    template: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict, max_length=40)


class TuningCreate(_Asked):
    model: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    training_file: _Id
    validation_file: _Id | None = None
    hyperparameters: Hyperparameters | None = None
    method: Method | None = None
    seed: int | None = Field(None, ge=0, le=2**31 - 1)
    suffix: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    metadata: Metadata | None = None
    integrations: Annotated[list[Integration], Field(max_length=5)] | None = None
    allpass: Ours = Field(default_factory=Ours)


class TuningError(BaseModel):
    code: str
    message: str
    param: str | None = None


class TuningJob(BaseModel):
    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    error: TuningError | None = None
    fine_tuned_model: str | None = None
    finished_at: int | None = None
    hyperparameters: dict[str, Any]
    model: str
    organization_id: str
    result_files: list[str]
    seed: int
    status: Status
    trained_tokens: int | None = None
    training_file: str
    validation_file: str | None = None
    estimated_finish: int | None = None
    integrations: list[IntegrationTold]
    metadata: dict[str, str] | None = None
    method: dict[str, Any]


class TuningEvent(BaseModel):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    data: dict[str, Any] | None = None
    type: Literal["message", "metrics"] = "message"


class CheckpointMetrics(BaseModel):
    step: float | None = None
    train_loss: float | None = None
    train_mean_token_accuracy: float | None = None
    valid_loss: float | None = None
    valid_mean_token_accuracy: float | None = None
    full_valid_loss: float | None = None
    full_valid_mean_token_accuracy: float | None = None


class TuningCheckpoint(BaseModel):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: CheckpointMetrics
    step_number: int


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelDeleted(BaseModel):
    id: str
    object: Literal["model"] = "model"
    deleted: bool = True
