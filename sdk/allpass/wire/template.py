"""`template.json`: a job's metadata. Its JSON Schema is published by `allpass schema template`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Union

from pydantic import AfterValidator, BeforeValidator, Field, Strict, StringConstraints, model_validator

from allpass.wire.access import MOST_SECRETS_PER_JOB, SecretName
from allpass.wire.base import (
    LARGEST,
    Flag,
    Label,
    Name,
    Positive,
    Rank,
    Real,
    Request,
    Retries,
    Seconds,
    SequenceLength,
    Sequences,
    Steps,
    Unguessed,
    Usd,
    Whole,
)
from allpass.wire.environment import Command, Environment
from allpass.wire.plan import ConfigKey, ExactMemory, Optimizer

MOST_OUTPUTS = 64
ConfigValue = Union[
    Flag,
    Annotated[int, Field(ge=-LARGEST, le=LARGEST), Unguessed],
    Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False), Strict()],
    Label,
]
_NOT_IN_A_PATH = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\\]")
_PATTERN = re.compile(r"[*?\[\]]")


def _inside(path: str) -> str:
    """A path below the working folder, without what says nothing."""
    named = f"{path!r} is not a path in the working folder of the job"
    if path.startswith(("/", "~")) or re.match(r"[A-Za-z]:", path):
        raise ValueError(f"{named}: write it as the script sees it from there, e.g. out/final")
    if _PATTERN.search(path):
        raise ValueError(f"{path!r} is a pattern: name the folder that the files are in, e.g. out/final")
    if _NOT_IN_A_PATH.search(path):
        raise ValueError(f"{named}: leave line breaks, control characters and backslashes out")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{named}: it leads out of it; name a folder that is in it, e.g. out/final")
    return "/".join(parts) or "."


OutputPath = Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(_inside)]
GpuType = Annotated[str, StringConstraints(min_length=1, max_length=40)]


_LARGEST_MEMORY_GB = 1024
_WITH_MEMORY = re.compile(r"(?P<type>.+?)[-_ ](?P<gb>\d{1,4})\s?GB", re.IGNORECASE)
_FORM = re.compile(r"(?<=\d)(?:[-_ ](?:SXM\d?|PCIE|NVL)|!)$", re.IGNORECASE)


class GpuRequest(Request):
    """GPUs of the job. Without `type`, any GPU with at least `memory_gb` will do.

    With `max_count` the job asks for a range: it begins on `count` GPUs or more, and never has fewer.
    """

    count: Whole = Field(1, ge=1, le=64)
    max_count: Annotated[int, Field(ge=1, le=64), Unguessed] | None = Field(
        None,
        description="the most that it may have; default: count. With more than count the job is elastic: on a pool it "
        "begins on as many as are free there, and what it has above count it lends to jobs that wait. At most 8",
    )

    @property
    def is_range(self) -> bool:
        """Whether the job may have more GPUs than it needs."""
        return self.max_count is not None and self.max_count > self.count

    type: GpuType | None = Field(
        None, description="e.g. A100, H100, L40S, RTX4090; A100-80GB is an A100 with at least 80 GB"
    )
    memory_gb: Real | None = Field(None, gt=0, le=_LARGEST_MEMORY_GB, description="memory per GPU")

    @model_validator(mode="after")
    def _range(self) -> GpuRequest:
        if self.max_count is not None and self.max_count < self.count:
            raise ValueError(f"max_count ({self.max_count}) is below count ({self.count})")
        return self

    @model_validator(mode="after")
    def _as_providers_name_it(self) -> GpuRequest:
        """Names of one company's price list ("A100-80GB", "H100!", "A100-SXM4-80GB") become a type and a memory."""
        if self.type is None:
            return self
        named = _WITH_MEMORY.fullmatch(self.type.strip())
        if named is not None and 0 < int(named["gb"]) <= _LARGEST_MEMORY_GB:
            self.type = named["type"]
            self.memory_gb = float(named["gb"]) if self.memory_gb is None else self.memory_gb
        self.type = _FORM.sub("", self.type.strip())
        return self


class ModelSpec(Request):
    name: str = Field(max_length=200)
    parameters: Positive | None = Field(None, description="how many the model has")
    config: dict[ConfigKey, ConfigValue] | None = Field(
        None,
        max_length=100,
        description="numbers, words and switches of its config.json, from which follows how much memory it needs",
    )


class DatasetSpec(Request):
    name: str = Field(max_length=500)
    examples: Positive | None = None
    size_bytes: Positive | None = None


class TrainingSpec(Request):
    """Give `steps` or `epochs`: it is how Allpass knows what is left to do.

    With `model.name` (of the table that `allpass plan` knows), `method`, `batch_size` and `sequence_length`, the memory
    that the job needs is predicted, and no GPU is rented that is too small. `gpu.memory_gb` overrules the prediction.
    """

    steps: Steps | None = None
    epochs: Real | None = Field(None, gt=0, le=1_000_000_000, allow_inf_nan=False)
    batch_size: Sequences | None = None
    sequence_length: SequenceLength | None = None
    learning_rate: Real | None = Field(None, gt=0, le=1_000_000, allow_inf_nan=False)
    method: Literal["full", "lora", "qlora", "norm-tuning"] | None = None
    precision: Literal["fp32", "bf16", "fp16", "autocast"] | None = Field(None, description="default: bf16")
    optimizer: Optimizer | None = Field(None, description="default: adamw")
    micro_batch: Sequences | None = Field(None, description="sequences on a GPU at once; default: as few as it takes")
    checkpointing: Flag | None = Field(None, description="activations are recomputed; default: where it takes that")
    lora_rank: Rank | None = Field(None, description="default: 16")
    lora_dropout: Annotated[Real, Field(ge=0, lt=1)] | None = Field(None, description="default: 0")
    narrow_adapters: Flag | None = Field(
        None,
        description="adapters in float32 are computed as wide as their base, as allpass finetune does; default: no",
    )
    loss: Literal["full", "chunked", "fused", "recomputed"] | None = Field(
        None,
        description="of how many tokens logits exist at once: full (all of them), chunked and fused (a part), or "
        "recomputed (by chunks that are computed again on the way back, as allpass finetune does); default: full",
    )
    row_tokens: SequenceLength | None = Field(
        None,
        description="tokens of a sequence on average, where rows are joined without padding, as allpass finetune does: "
        "decides how long a step takes; default: sequence_length",
    )
    precision_by_gpu: Flag | None = Field(
        None,
        description="bf16 becomes fp16 on GPUs that have no units for it (T4, V100), as allpass finetune does: decides "
        "memory and time there; default: no",
    )
    reference_pass: Flag | None = Field(
        None,
        description="each sequence also goes through the model without its adapters and gradients, as in learning from "
        "preferences: more time, and no more memory; default: no",
    )
    sharded: Flag | None = Field(
        None,
        description="weights are split over GPUs, as by allpass finetune --sharded: frozen ones over a machine's; "
        "of a full fine-tuning also gradients and states, over all there are. Each GPU needs less, and passes "
        "weights on in every step; default: no",
    )
    exact: ExactMemory | None = Field(
        None,
        description="symbolic runs, from allpass plan --exact --json; with it the table need not know the model",
    )


class TargetMetric(Request):
    name: str = Field(max_length=100)
    value: Real = Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)
    goal: Literal["min", "max"] = "min"


class CapSpec(Request):
    max_cost_usd: Usd | None = None
    max_duration_s: Seconds | None = None
    max_hourly_usd: Usd | None = Field(
        None, description="most that the GPUs it gets may cost per hour; while nothing is to be had for that, it waits"
    )
    max_wait_s: Seconds | None = Field(
        None,
        description="longest that it is kept waiting for something cheaper, from its submission to its first place; "
        "then it starts at whatever price the other caps allow, and where nothing may be had it waits on and says why",
    )


class BestCheckpoint(Request):
    metric: Name
    mode: Literal["min", "max"] = "min"


def _in_words(told: Any) -> Any:
    """A text is the one thing that people say of their checkpoints: where they are."""
    return {"folders": told} if isinstance(told, str) else told


def _folders(text: str) -> str:
    """A path below the working folder, with one `*` in its last part."""
    path = _inside(text.replace("*", "N"))
    name = text.strip("/").rpartition("/")[2]
    if text.count("*") != 1 or "*" not in name:
        raise ValueError(
            f"{text!r} has to have one * in its last part, for the number of finished steps, e.g. out/checkpoint-*"
        )
    if re.search(r"\d\*|\*\d", name):
        raise ValueError(f"{text!r} has a digit beside its *, which stands for a number: leave it out")
    return "/".join([*path.split("/")[:-1], name])


class Retention(Request):
    """Where a script keeps checkpoints of its own, and which checkpoints stay: each rule keeps some, the rest is
    deleted. The newest always stays."""

    folders: Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(_folders)] | None = Field(
        None,
        description="for a script that saves by itself and, when it starts, goes on from the newest that it finds: the "
        "folders or files of its working folder, with one * for the number of finished steps, e.g. out/checkpoint-*. "
        "They are stored when they are complete, and put back in their place before a further run",
    )
    keep_last: Annotated[int, Field(ge=1, le=1000), Unguessed] | None = Field(
        None, description="so many of the newest; default: the server's"
    )
    keep_every_steps: Steps | None = Field(None, description="the first of each stretch of so many steps")
    keep_best: BestCheckpoint | None = Field(None, description="the one with the best value of a reported metric")


class Placement(Request):
    """Beside whom the job runs, by labels of other jobs of the project, and whether it moves. On serverless each job
    has a machine of its own."""

    affinity: dict[Name, Label] = Field(
        default_factory=dict,
        max_length=64,
        description="while a job with one of these labels runs on a rented node, this one goes there and nowhere else",
    )
    anti_affinity: dict[Name, Label] = Field(
        default_factory=dict, max_length=64, description="never on a node where a job with one of these labels is"
    )
    locked: Flag = Field(False, description="never moved, for money or for others, as long as its machine stays")
    most_per_switch: Annotated[int, Field(ge=1, le=64), Unguessed] | None = Field(
        None,
        description="of a job on several machines: so many under one switch at most, by the label switch of hosts, so "
        "that others outlive it. All of which nobody says it count as under one. Default: any number",
    )
    most_per_rack: Annotated[int, Field(ge=1, le=64), Unguessed] | None = Field(
        None, description="likewise in one rack, by the label rack; 1: each in another one"
    )

    @model_validator(mode="after")
    def _switches_are_in_racks(self) -> Placement:
        rack, switch = self.most_per_rack, self.most_per_switch
        if rack is not None and switch is not None and switch > rack:
            raise ValueError(
                f"most_per_switch ({switch}) is above most_per_rack ({rack}), and a switch is in one rack; say at most "
                f"{rack}, or leave most_per_switch out"
            )
        return self


class Template(Request):
    """Everything is optional: an empty template is one GPU of any type, a batch job, no caps."""

    name: Name | None = None
    command: Command | None = Field(
        None,
        description="what to run in the folder of the code, as words: a program that the machine or a package has, or "
        "a file of the code; default: the app's script",
    )
    env: Environment = Field(
        default_factory=dict, description="variables for the environment of the job's processes; no secrets"
    )
    image: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = Field(
        None, description="container image to run in; default: the app's"
    )
    model: ModelSpec | None = None
    dataset: DatasetSpec | None = None
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    gpu: GpuRequest = Field(default_factory=GpuRequest)
    nodes: Whole = Field(
        1,
        ge=1,
        le=64,
        description="machines that it runs on at once, each with the GPUs, processors and memory that are asked for. "
        "The same command runs on each, with what torchrun and torch.distributed read to find the others",
    )
    cpus: Whole = Field(1, ge=1, le=1024)
    memory_gb: Real = Field(1.0, gt=0, le=8192)
    target: TargetMetric | None = None
    kind: Literal["interactive", "batch"] = Field(
        "batch",
        description="interactive: somebody waits for it. It starts on serverless at once, elastic jobs of the project "
        "lend it GPUs before others, and it lends none of its own until it has run for long. Left out, it is a batch "
        "job, and for lending alone it is judged by its steps and by what earlier jobs of its app took",
    )
    priority_class: Literal["guaranteed", "spot"] = Field(
        "guaranteed",
        description="spot: uses GPUs that no guaranteed job wants. When one of these waits for room, spot jobs save, "
        "leave and wait for another place: those that lose the least work, and none in its first minute, but for what "
        "another project is sure of in a pool",
    )
    start: Literal["auto", "now", "when-cheap"] = Field(
        "auto",
        description="now: on serverless at once; when-cheap: on a rented node; auto: at once, unless a batch job that "
        "will run for long gains from waiting up to a minute for a cheaper node",
    )
    elastic: Flag = Field(
        False,
        description="while jobs of the project wait for GPUs of its machine, it lends them all but one; what nobody "
        "waits for it has back. Of the built-in fine-tuning and of code that uses allpass.training.elastic, whose "
        "results do not change; other code keeps its GPUs. With gpu.max_count it lends what it has above gpu.count: "
        "then this need not be said",
    )
    resize_by: Literal["code", "restart"] = Field(
        "code",
        description="how its GPUs change while it runs. code: by its own code, exactly (the built-in fine-tuning, and "
        "allpass.training.elastic). restart: any code that saves when it is asked to, or by itself, is begun again on "
        "the same machine, from what it has saved, with the same command; not exact, for its batch follows its GPUs. "
        "Such a job trains with no other in common",
    )
    sharing: Flag = True
    checkpoint_interval_s: Annotated[int, Field(ge=1, le=86_400), Unguessed] | None = None
    checkpoints: Annotated[Retention, BeforeValidator(_in_words)] = Field(default_factory=Retention)
    caps: CapSpec = Field(default_factory=CapSpec)
    retries: Retries | None = Field(
        None,
        description="how often it is begun again, from its newest checkpoint, when its own code fails: with an exit "
        "code or for want of memory. What machines do is not counted. 0: never; default: once, after running out of "
        "memory, where more is offered",
    )
    placement: Placement = Field(default_factory=Placement)
    outputs: list[OutputPath] | None = Field(
        None,
        max_length=MOST_OUTPUTS,
        description="files and folders of the job's working folder that are kept when a run of it ends, whatever their "
        "size; no patterns. `.` stands for all that is new or changed there, up to the server's limit, and is what is "
        "kept when this is left out. Files below ALLPASS_OUTPUT_DIR are kept in any case",
    )
    secrets: list[SecretName] = Field(
        default_factory=list,
        max_length=MOST_SECRETS_PER_JOB,
        description="names of the project's secrets that the script finds in its environment",
    )
    labels: dict[Name, Label] = Field(default_factory=dict, max_length=64)

    @model_validator(mode="after")
    def _range_is_elastic(self) -> Template:
        gpu = self.gpu
        if gpu.is_range and "elastic" in self.model_fields_set and not self.elastic:
            raise ValueError(
                f"elastic: false keeps the number of GPUs, and gpu.max_count ({gpu.max_count}) lets the job have "
                f"{gpu.count} to {gpu.max_count}; leave elastic out, or gpu.max_count"
            )
        if gpu.is_range:
            self.elastic = True
        return self

    @model_validator(mode="after")
    def _each_variable_once(self) -> Template:
        both = sorted(self.env.keys() & set(self.secrets))
        if both:
            raise ValueError(f"env: {both[0]!r} is in secrets, too; leave one of the two out")
        return self
