"""What a job would need and what that costs, asked before anything is rented."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from allpass.wire.base import (
    Deadline,
    Flag,
    LibraryVersion,
    MicroUsd,
    Name,
    Positive,
    Rank,
    Real,
    Request,
    Response,
    SequenceLength,
    Sequences,
    Steps,
    Unguessed,
    Whole,
)

Method = Literal["full", "lora", "qlora", "norm-tuning"]
Precision = Literal["fp32", "bf16", "fp16", "amp_bf16", "amp_fp16"]
Optimizer = Literal[
    "adamw",
    "adamw_foreach",
    "adamw_fused",
    "adamw_8bit",
    "paged_adamw",
    "paged_adamw_8bit",
    "adafactor",
    "sgd",
    "sgd_momentum",
    "in_backward_adamw",
    "in_backward_adamw_8bit",
]
Attention = Literal["flash", "efficient", "eager"]
Loss = Literal["full", "chunked", "fused", "recomputed"]
Quantisation = Literal["none", "nf4", "nf4_dq", "nf4_ao", "gptq_int4"]
Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"]
Tier = Literal["serverless", "own", "marketplace", "conventional"]
Verdict = Literal["fits", "tight", "no"]
StepSource = Literal["measured", "scaled", "estimate"]
STEPS_TOLD = 1000
Matrix = Annotated[str, StringConstraints(min_length=1, max_length=100)]
ConfigKey = Annotated[str, StringConstraints(max_length=200)]
GpuType = Annotated[str, StringConstraints(min_length=1, max_length=40)]
UpTo64 = Annotated[int, Field(ge=1, le=64), Unguessed]
NetworkSource = Literal["measured", "stated", "assumed"]


class ExactPeak(Request):
    """Peak bytes by phase of a step, on one GPU, as a symbolic run of the real module showed them."""

    micro_batch: Sequences
    checkpointing: Flag
    accumulates: Flag = Field(description="in a micro-batch after the first of its step")
    forward_bytes: Positive
    backward_bytes: Positive
    optimizer_bytes: Positive


class ExactMemory(Request):
    """Symbolic runs of one model and training: what `allpass plan --exact` found. It decides where the tables are not
    sure or do not know the model; what they expect at least stays."""

    parameters: Positive
    peaks: list[ExactPeak] = Field(min_length=1, max_length=32)
    versions: dict[LibraryVersion, LibraryVersion] = Field(
        default_factory=dict, max_length=16, description="of the libraries that it was found with"
    )


class OwnLayout(Request):
    """How a script is laid out that keeps all of the training on each of its GPUs. What is left out follows from each
    GPU, as when such a job runs there."""

    gpus: Whole = Field(1, ge=1, le=8, description="of a machine, which share the micro-batches of a step")
    micro_batch: Sequences | None = Field(None, description="sequences on the GPU at once")
    checkpointing: Flag | None = Field(None, description="activations are recomputed in the backward pass")


class PlanRequest(Request):
    """A model and how it is trained. Give `model` or `config`; what is left out of the rest has its usual value."""

    model: Name | None = Field(None, description="a model of the built-in table, e.g. llama-3-8b")
    config: dict[ConfigKey, Any] | None = Field(
        None, max_length=1000, description="a model of your own: its config.json, or the sizes of it in those words"
    )
    method: Method = "lora"
    batch: Sequences = Field(description="sequences in a step of the optimizer, over all GPUs")
    sequence: SequenceLength = Field(description="tokens in each")
    precision: Precision = Field("bf16", description="of the weights; amp_*: float32 weights under autocast")
    autocast: Flag | None = Field(None, description="for half-precision weights; default: for qlora alone")
    optimizer: Optimizer = "adamw"
    checkpointing: Flag = Field(
        False, description="recompute activations in the backward pass; false: only in plans that need it"
    )
    layout: OwnLayout | None = Field(
        None, description="of a script that runs on GPUs of a number of its own; default: on as many as is best"
    )
    export: Literal["adapter", "merged", "both"] | None = Field(
        None, description="with `layout`: what is left at the end, as of allpass finetune; default: adapter"
    )
    attention: Attention = "flash"
    loss: Loss = Field(
        "full",
        description="full: all logits in float32; chunked and fused hold a part of them; recomputed: as allpass "
        "finetune does, by chunks that are computed again on the way back",
    )
    rank: Rank | None = Field(None, description="of the adapters; default: 16")
    targets: Annotated[list[Matrix], Field(min_length=1, max_length=64)] | None = Field(
        None, description="matrices with an adapter, as the model calls them, or all, or attention; default: all"
    )
    adapter_dropout: Annotated[Real, Field(ge=0, lt=1)] | None = Field(None, description="default: 0")
    narrow_adapters: Flag | None = Field(
        None,
        description="adapters in float32 are computed as wide as their base, as allpass finetune does; default: no",
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
    row_tokens: SequenceLength | None = Field(
        None,
        description="tokens of a sequence on average, where rows are joined without padding, as allpass finetune does: "
        "decides how long a step takes; default: sequence",
    )
    precision_by_gpu: Flag | None = Field(
        None,
        description="bf16 becomes fp16 on GPUs that have no units for it (T4, V100), as allpass finetune does: decides "
        "memory and time there; default: no",
    )
    quantisation: Quantisation | None = Field(None, description="default: nf4_dq for qlora, else none")
    saves: list[Literal["embed_tokens", "lm_head"]] = Field(
        default_factory=list, max_length=2, description="whole modules that are trained beside the adapters"
    )
    steps: Steps | None = Field(
        None, description=f"of the optimizer, in all; default: times and costs are for {STEPS_TOLD}"
    )
    soft_deadline: Deadline | None = Field(None, description='as of a job: "6hr", "90m", or an instant')
    exact: ExactMemory | None = Field(None, description="what symbolic runs showed; needed for an unknown model_type")
    nodes: UpTo64 | None = Field(
        None,
        description="machines that it runs on at once, as of a job; with `layout`: as allpass finetune shares a step "
        "over them. Default: one, and several where nothing fits on one",
    )
    spot: Flag | None = Field(
        None,
        description="as a spot job: at what spot jobs pay, and with what is bid for, lent or kept for others, which it "
        "has to leave; default: what any job may have",
    )
    gpu_type: GpuType | None = Field(None, description="only on this type of GPU; default: all")
    gpu_count: UpTo64 | None = Field(
        None, description="only with so many GPUs of each machine; with `layout`, its gpus say it"
    )
    most_per_switch: UpTo64 | None = Field(
        None, description="of `nodes`, so many under one switch at most, as of a job's placement; default: any number"
    )
    most_per_rack: UpTo64 | None = Field(None, description="likewise in one rack")
    network_gbits: Annotated[Real, Field(gt=0, le=100_000)] | None = Field(
        None,
        description="gigabits per second between the machines; default: as earlier jobs measured it, else 10",
    )


class MemoryRange(Response):
    """Bytes on one GPU, and the bounds that they are expected within."""

    low: int
    expected: int
    high: int


class PlanLayout(Response):
    """How the batch is spread: replicas x micro_batch x accumulation = batch."""

    gpus: int = Field(description="those that are used")
    replicas: int
    tensor_parallel: int
    sharding: Sharding
    micro_batch: int = Field(description="sequences on a replica at once")
    accumulation: int = Field(description="micro-batches in a step of the optimizer")
    checkpointing: bool
    precision: Precision | None = Field(None, description="of the weights; null from servers before this was told")


class PlanOffer(Response):
    """The cheapest offer of its provider and tier. `price_per_hour` is for all its GPUs.

    Where a step's time is known: `duration_ms` from now until the last step, start-up included, and `cost` of it.
    """

    tier: Tier
    provider: str
    offer_id: str
    price_per_hour: MicroUsd
    spot_price_per_hour: MicroUsd | None = Field(
        None, description="of a pool where spot jobs pay a share: what a spot job pays; null: as any other"
    )
    startup_ms: int
    duration_ms: int | None = None
    cost: MicroUsd | None = None
    likely_cost: MicroUsd | None = Field(
        None,
        description="`cost` with the work that is done twice, where such machines are known to fail; offers are "
        "compared by it",
    )
    spot_cost: MicroUsd | None = Field(None, description="`cost` at `spot_price_per_hour`, where there is one")
    in_time: bool | None = Field(None, description="ends by the deadline; null without deadline, steps or step time")
    steps_in_time: int | None = Field(None, description="steps that are done by the deadline")
    interruptible: bool = Field(False, description="by a bid: it is lost without a word when somebody pays more")
    price_as_of: date | None = Field(
        None, description="the day of the price, where the company has no interface for prices; null: as it told it"
    )
    price_is_old: bool = Field(False, description="that day is more than 180 days ago: see /v1/providers")


class PlanOption(Response):
    """One type and count of GPUs that can be rented now.

    `verdict`: fits (an unlucky run too), tight (it may or may not), no. `layout` is the best that fits, or else the one
    that needs the least memory.
    """

    gpu_type: str
    gpu_count: int
    gpu_memory_bytes: int = Field(description="per GPU: the capacity that `process` is compared with")
    verdict: Verdict
    layout: PlanLayout
    peak_in: Literal["forward", "backward", "optimizer"] = Field(description="the part of a step that needs the most")
    calibrated_by: int = Field(
        0, description="runs of this kind that the memory was corrected by; see /v1/calibrations"
    )
    near: Flag = Field(False, description="a symbolic run of this layout could change the verdict")
    tables: MemoryRange | None = Field(
        None, description="what the tables alone say of `allocated`, where a symbolic run decided"
    )
    exact: Flag = Field(False, description="a symbolic run decided")
    raised: Flag = Field(False, description="it said less than the tables expect at least, which was taken")
    allocated: MemoryRange = Field(description="by tensors: torch.cuda.max_memory_allocated()")
    reserved: MemoryRange = Field(description="with what the allocator cannot use: max_memory_reserved()")
    process: MemoryRange = Field(description="with the CUDA context: what the driver shows")
    step_ms: float | None = Field(description="one step of the optimizer; null for a type of GPU without figures")
    step_source: StepSource | None = Field(
        description="measured: exactly this; scaled: from something near; estimate: from the GPU's rates, within 2 x"
    )
    offers: list[PlanOffer] = Field(description="the cheapest of each provider and tier, the best first")


class PlanRemedy(Response):
    """Changes that together make the job fit, and the cheapest GPUs on which they do."""

    changes: list[str] = Field(description="fields of the request with their new values")
    message: str
    gpu_type: str
    gpu_count: int
    price_per_hour: MicroUsd


class PlanNetwork(Response):
    """What machines tell each other in each step, over the network between them, and how long a step waits for that."""

    bits_per_s: int
    source: NetworkSource = Field(
        description="measured: between machines of this site, before earlier jobs ran; stated: by `network_gbits`; "
        "assumed: nobody has measured it"
    )
    meetings: int = Field(0, description="jobs that have measured it")
    bytes_per_step: int = Field(description="that each machine takes in from the others")
    exchange_ms: float = Field(description="of each step")
    is_slow: bool = Field(description="a step waits longer for the network than it computes")


class PlanSwitch(Response):
    """How many of the machines would be under one switch. Empty names: nobody says it."""

    rack: str
    switch: str
    machines: int


class PlanMachines(Response):
    """One type of GPU, so many of each machine, at one site: machines of one site reach each other.

    `runs_as`: `recipe`, a whole copy on each GPU, as allpass finetune has it; `script`, by code of yours that lays it
    out so (allpass run --nodes). What it costs is of all machines.
    """

    nodes: int
    gpu_type: str
    gpu_count: int = Field(description="of each machine")
    gpu_memory_bytes: int = Field(description="per GPU: the capacity that `process` is compared with")
    provider: str
    tier: Tier
    site: str = Field(description="the pool, or the region, in which they are")
    verdict: Verdict
    layout: PlanLayout = Field(description="over the GPUs of all machines")
    runs_as: Literal["recipe", "script"]
    peak_in: Literal["forward", "backward", "optimizer"]
    calibrated_by: int = 0
    allocated: MemoryRange
    reserved: MemoryRange
    process: MemoryRange
    computing_ms: float | None = Field(None, description="of a step, without the network between machines")
    step_ms: float | None = Field(None, description="with it")
    step_source: StepSource | None = Field(None, description="of `computing_ms`")
    network: PlanNetwork
    machines: int | None = Field(
        None,
        description="such machines that are to be had there now, 64 at most, or 1,024 where bounds on switches or "
        "racks are asked for; null: its provider tells no number",
    )
    why_not: str | None = Field(None, description="why not all of them are to be had now; null: they are")
    price_per_hour: MicroUsd | None = Field(None, description="null where they are not to be had")
    startup_ms: int | None = None
    duration_ms: int | None = None
    cost: MicroUsd | None = None
    in_time: bool | None = None
    steps_in_time: int | None = None
    price_as_of: date | None = None
    price_is_old: bool = False
    switches: list[PlanSwitch] = Field(
        default_factory=list, description="that they would be under, the most first; empty where nobody says which"
    )
    entropy: float = Field(0.0, description="of these, in nats: 0 under one switch, 0.69 where two have a half each")


class Plan(Response):
    """Fitting options first, then tight ones; among equals, the one that costs least within the deadline first."""

    model: str
    parameters: int
    batch: int
    sequence: int
    method: Method
    profile: str = Field(description="the library versions whose behaviour is assumed")
    steps: int = Field(description="what times and costs are for")
    one_gpu_bytes: int = Field(description="a single GPU with so much memory is enough")
    host_bytes: int | None = Field(
        None,
        description="memory that a machine has to have beside its GPUs, to load, save and export; null: the script's "
        "own affair (no `layout`)",
    )
    chosen: int | None = Field(description="index in `options` of what would be rented, with its first offer")
    reason: str = Field(description="why that one; or why none")
    options: list[PlanOption]
    config: dict[str, Any] = Field(
        default_factory=dict, description="of the model, as far as it decides memory, in the words of a config.json"
    )
    exact: ExactMemory | None = Field(None, description="the symbolic runs that were told")
    remedies: list[PlanRemedy] = Field(description="where nothing fits: what would, the smallest changes first")
    nodes: int | None = Field(None, description="as it was asked; then `options` is empty, and `machines` has them")
    machines: list[PlanMachines] = Field(
        default_factory=list,
        description="on several machines: as many as were asked for, or, where nothing fits on one, the fewest on "
        "which it does; the best first",
    )
    chosen_machines: int | None = Field(None, description="index in `machines` of what would be rented")
    machines_reason: str | None = Field(
        None, description="why those, or why none; null where one machine is enough and no more were asked for"
    )
