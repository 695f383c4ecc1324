"""What may be chosen of a built-in fine-tuning: one frozen object, checked field by field.

Its fields are a job's parameters, under the names that a template has for them. Runs on Python 3.9 with the standard
library alone, as machines read it too.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

from allpass.errors import InvalidInput
from allpass.recipe.checks import check_choice, check_real, check_text, check_whole, wrong
from allpass.recipe.tracked_run import checked_wandb

METHODS = ("lora", "qlora", "full")
TASKS = ("sft", "classification", "dpo")
PRECISIONS = ("bf16", "fp16", "fp32", "autocast")
OPTIMIZERS = ("adamw", "adamw_8bit", "paged_adamw_8bit")
SCHEDULES = ("linear", "cosine", "constant")
GOALS = {"eval_loss": "min", "eval_accuracy": "max"}
ADAPTER_FOLDER = "adapter"  # beside the rows: one that was sent along with them
EXPORTS = ("adapter", "merged", "both")
_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
# Left out where they have their defaults: an older release, which does not know them, trains the same. The edition is
# with the rows (`packing`).
_LEFT_OUT = (
    "adapter",
    "use_rslora",
    "use_dora",
    "export",
    "push_to",
    "packing",
    "edition",
    "beta",
    "optimizer",
    "wandb",
    "sharded",
)
ALL_LINEAR = "all-linear"
CUT = ("micro_batch", "checkpointing")  # of a step: what follows from the GPU where nobody chooses it
EDITION = 4  # of the trainer's arithmetic
OF_NEW_JOBS = {"edition": EDITION, "lora_dropout": 0.0}  # where they differ from what a job of earlier versions means
# What two jobs that are trained in one process must have in common. The tokenizer comes with the model.
SHARED_BY_A_PAIR = (
    "model", "task", "method", "numbers", "batch_size", "micro_batch", "sequence_length", "rate", "schedule", "warmup",
    "weight_decay", "clip_norm", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "checkpointing", "threads",
    "edition", "optimizer",
)  # fmt: skip
_WIDE = 'precision="autocast"'  # float32 weights, computed in bf16
_RATES = {"lora": 2e-4, "qlora": 2e-4, "full": 2e-5}
_RATE_OF_PAIRS = 5e-6  # a step of a preference goes further than one of an answer


@dataclass(frozen=True)
class Recipe:
    """A fine-tuning. A step is one of the optimizer.

    model            a name of the Hugging Face hub, or the path of a folder on the machine
    task             sft: supervised fine-tuning of a causal model; classification: of whole texts; dpo: which of two
                     answers is the better one (direct preference optimization, with adapters)
    method           lora, qlora (4-bit base weights; needs a GPU), or full
    epochs, steps    how often all rows are seen; `steps`, where given, counts instead
    batch_size       rows in a step
    micro_batch      of them on the GPU at once; default: what is quickest on the GPU that it gets (where nobody plans,
                     at most 4; of dpo 2, each of which is two sequences). What is learned does not depend on it but
                     for the last bits of sums
    beta             of dpo: how dear it is to move away from the model that training began with
    sequence_length  tokens of a row, of which the rest is cut off
    learning_rate    default: 2e-4 for adapters, 2e-5 for full, 5e-6 for dpo; rises over `warmup` (a share of all
                     steps), then falls as `schedule` says: linear, cosine or constant
    optimizer        adamw; adamw_8bit: its states in 8 bits (bitsandbytes; needs a GPU); paged_adamw_8bit: which may
                     go to the host's memory
    precision        bf16, fp16, fp32, or autocast (fp32 weights, computed in bf16); default: bf16 (fp16 on GPUs
                     without it), for full autocast
    lora_targets     all-linear, or names of matrices
    use_rslora       scale adapters by the root of their rank; use_dora: train their direction and length apart
    adapter          one to go on from, with its own rank, scale and matrices: a folder, or a name of the hub
    export           what is left: the adapter, the whole model with the adapter merged into its weights, or both
    push_to          a repository of the hub that it is put into at the end: organisation/name
    evaluate_every   steps between two looks at the held-out rows; default: an epoch
    target           the one metric and value at which training ends early: {"eval_accuracy": 0.9}, {"eval_loss": 1.2}
    patience         ends it too when so many evaluations in a row brought nothing better
    checkpointing    recompute activations: less memory, a third more time; default: where the GPU takes that
    threads          of the processor, where there is no GPU; the same number gives the same bits on every machine
    sharded          split the base model's weights over the GPUs of its machine, where none of them holds it alone
                     (lora); with full also gradients and the optimizer's states, over the GPUs of all machines. What is
                     learned is the same, bit for bit
    packing          join rows of a step without padding, where the model can tell them apart
    wandb            a run of Weights & Biases that its metrics are told to: {"project": ...}, and as you like name,
                     entity, tags, run (an id). The key is the secret WANDB_API_KEY
    edition          how a step is computed. A job keeps the one that it began with, so that it goes on exactly when
                     Allpass is upgraded: it is packed with the rows. 1: rows as drawn, padded; adapters computed in
                     fp32. 2: see ADR 0056. 3: the loss by chunks of tokens, see ADR 0066. 4: what is random of a
                     micro-batch follows from the seed, the step and its number, see ADR 0093
    """

    model: str
    task: str = "sft"
    method: str = "lora"
    epochs: float = 3.0
    steps: Optional[int] = None
    batch_size: int = 16
    micro_batch: Optional[int] = None
    sequence_length: int = 1024
    learning_rate: Optional[float] = None
    schedule: str = "linear"
    warmup: float = 0.03
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    precision: Optional[str] = None
    lora_rank: int = 16
    lora_alpha: Optional[int] = None
    lora_dropout: float = 0.05
    lora_targets: "str | Tuple[str, ...]" = ALL_LINEAR
    use_rslora: bool = False
    use_dora: bool = False
    adapter: Optional[str] = None
    export: str = "adapter"
    push_to: Optional[str] = None
    evaluate_every: Optional[int] = None
    target: Optional[Mapping[str, float]] = None
    patience: Optional[int] = None
    seed: int = 0
    checkpointing: Optional[bool] = None
    threads: int = 1
    packing: bool = True
    beta: float = 0.1
    optimizer: str = "adamw"
    wandb: Optional[Mapping[str, Any]] = None
    sharded: bool = False
    edition: int = 1

    def __post_init__(self) -> None:
        """Raises InvalidInput naming the field, its value and what would be accepted."""
        check_text("model", self.model)
        choices = (("task", TASKS), ("method", METHODS), ("schedule", SCHEDULES), ("optimizer", OPTIMIZERS))
        for name, allowed in choices:
            check_choice(name, getattr(self, name), allowed)
        for name in ("batch_size", "sequence_length", "lora_rank", "threads", "edition"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("steps", "micro_batch", "lora_alpha", "evaluate_every", "patience"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least=1)
        check_whole("seed", self.seed, least=0)
        self._check_numbers()
        for name in ("checkpointing", "packing", "use_rslora", "use_dora", "sharded"):
            if not isinstance(getattr(self, name), bool) and not (
                name == "checkpointing" and self.checkpointing is None
            ):
                raise wrong(name, getattr(self, name), "is neither true nor false", f"{name}=True")
        self._check_what_is_left()
        if self.edition > EDITION:
            what = f"is newer than this version of Allpass, which knows {EDITION}"
            raise wrong("edition", self.edition, what, "upgrade")
        self._settle()
        self._check_together()

    @classmethod
    def new(cls, values: Mapping[str, Any]) -> "Recipe":
        """A recipe for a job that is to begin. What `of` reads may be of a job that began under an older version."""
        return cls.of({**OF_NEW_JOBS, **values})

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Recipe":
        """A recipe from parameters by name. Raises InvalidInput for a name that it does not have."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
                raise InvalidInput(
                    f"{name}: the recipe has no such setting", hint=near[0] if near else "one of " + ", ".join(names)
                )
        if "model" not in values:
            raise InvalidInput("model: is missing", hint='model="HuggingFaceTB/SmolLM2-135M"')
        return cls(**values)

    def parameters(self) -> "dict[str, Any]":
        """The job's parameters: what `of` turns back into this very recipe."""
        told = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        ordinary = {field.name: field.default for field in dataclasses.fields(self) if field.name in _LEFT_OUT}
        return {name: value for name, value in told.items() if value is not None and value != ordinary.get(name, ...)}

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        if self.learning_rate is not None:
            return self.learning_rate
        return _RATE_OF_PAIRS if self.learns_pairs else _RATES[self.method]

    @property
    def numbers(self) -> str:
        """The precision that is trained in."""
        return self.precision or ("autocast" if self.method == "full" else "bf16")

    @property
    def rows_at_once(self) -> int:
        """Rows of a micro-batch, where nobody has planned otherwise."""
        return self.micro_batch or min(2 if self.learns_pairs else 4, self.batch_size)

    @property
    def learns_pairs(self) -> bool:
        """Whether a row is two answers, of which one is the better."""
        return self.task == "dpo"

    @property
    def has_narrow_states(self) -> bool:
        """Whether what the optimizer keeps of each weight is in 8 bits."""
        return self.optimizer != "adamw"

    @property
    def is_causal(self) -> bool:
        """Whether the model says what comes next, rather than which label a text has."""
        return self.task != "classification"

    @property
    def sequences_per_row(self) -> int:
        """What a row comes to on the GPU: memory goes by it."""
        return 2 if self.learns_pairs else 1

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step."""
        return math.ceil(self.batch_size / self.rows_at_once)

    @property
    def sorts_rows(self) -> bool:
        """Whether a step's rows are put in order before they are cut into micro-batches."""
        return self.edition >= 2

    @property
    def packs_rows(self) -> bool:
        """Whether rows are to be joined where the model can tell them apart: a classifier looks at each as a whole."""
        return self.edition >= 2 and self.packing and self.is_causal

    @property
    def has_narrow_adapters(self) -> bool:
        """Whether adapters, which are kept in float32, are computed as their base is. DoRA's take norms of them, for
        which that is too coarse."""
        return self.edition >= 2 and self.method != "full" and not self.use_dora

    @property
    def asks_answers_alone(self) -> bool:
        """Whether no logits are computed but those that are learned, where the model lets one choose."""
        return self.edition >= 2

    @property
    def takes_chunks(self) -> bool:
        """Whether logits of no more than a chunk of tokens exist at once, where the model can be asked so."""
        return self.edition >= 3 and self.is_causal

    @property
    def splits_all(self) -> bool:
        """Whether each process has a share of what is trained, too."""
        return self.sharded and self.method == "full"

    @property
    def draws_by_part(self) -> bool:
        """Whether what is random of a micro-batch does not depend on those before it, so that any process may take
        it."""
        return self.edition >= 4

    @property
    def follows_the_card(self) -> bool:
        """Whether the GPU that training begins on decides between bf16 and fp16."""
        return self.edition >= 2 and self.precision is None and self.method != "full"

    @property
    def cut(self) -> "dict[str, Any]":
        """How a step is cut, as a checkpoint keeps it."""
        return {"micro_batch": self.rows_at_once, "checkpointing": bool(self.checkpointing)}

    @property
    def chosen_cut(self) -> "dict[str, Any]":
        """What of it does not follow from the GPU, in sequences. Of pairs all of it: what follows from a GPU may be one
        sequence at once, and a pair is two."""
        if self.learns_pairs:
            return {**self.cut, "micro_batch": self.rows_at_once * self.sequences_per_row}
        return {name: getattr(self, name) for name in CUT if getattr(self, name) is not None}

    @property
    def layout(self) -> "dict[str, Any]":
        """How a step is laid out, in the words of `training.describe`."""
        return {
            "micro_batch": self.rows_at_once * self.sequences_per_row,
            "checkpointing": bool(self.checkpointing),
            "accumulation": self.accumulation,
            "sequence": self.sequence_length,
            "sharding": "none",
        }

    def steps_per_epoch(self, rows: int) -> int:
        """Steps in which `rows` training rows are seen once; the last of them may be a small one."""
        return math.ceil(rows / self.batch_size)

    def total_steps(self, rows: int) -> int:
        """The last step, unless the target is reached before."""
        return self.steps or max(1, math.ceil(self.epochs * self.steps_per_epoch(rows)))

    def evaluates_at(self, step: int, rows: int) -> bool:
        """Whether the held-out rows are looked at after `step`: at intervals, and after the last one."""
        interval = self.evaluate_every or self.steps_per_epoch(rows)
        return step % interval == 0 or step == self.total_steps(rows)

    @property
    def metric(self) -> "tuple[str, str]":
        """What makes a state the best, and whether that is its `min` or `max`: the target's metric, else eval_loss."""
        name = next(iter(self.target)) if self.target else "eval_loss"
        return name, GOALS[name]

    def _check_numbers(self) -> None:
        check_real("epochs", self.epochs, above=0)
        check_real("clip_norm", self.clip_norm, above=0)
        check_real("beta", self.beta, above=0)
        check_real("weight_decay", self.weight_decay, least=0)
        check_real("warmup", self.warmup, least=0, below=1)
        check_real("lora_dropout", self.lora_dropout, least=0, below=1)
        if self.learning_rate is not None:
            check_real("learning_rate", self.learning_rate, above=0)
        if self.precision is not None:
            check_choice("precision", self.precision, PRECISIONS)

    def _check_what_is_left(self) -> None:
        check_choice("export", self.export, EXPORTS)
        if self.adapter is not None:
            check_text("adapter", self.adapter)
        if self.method == "full":
            for name, ordinary in (
                ("adapter", None),
                ("export", "adapter"),
                ("use_dora", False),
                ("use_rslora", False),
            ):
                if getattr(self, name) != ordinary:
                    raise wrong(name, getattr(self, name), "is for adapters, and method is 'full'", 'method="lora"')
        if self.push_to is not None:
            check_text("push_to", self.push_to)
            if not _REPOSITORY.fullmatch(self.push_to) or ".." in self.push_to:
                raise wrong("push_to", self.push_to, "is no repository of the hub", 'push_to="my-team/my-model"')

    def _settle(self) -> None:
        """Lists as tuples, whole epochs as a float: equal recipes are equal objects."""
        if isinstance(self.lora_targets, list):
            object.__setattr__(self, "lora_targets", tuple(self.lora_targets))
        object.__setattr__(self, "epochs", float(self.epochs))
        if self.target is not None:
            object.__setattr__(self, "target", _checked_target(self.target))
        if self.wandb is not None:
            object.__setattr__(self, "wandb", checked_wandb(self.wandb))

    def _check_together(self) -> None:
        targets = self.lora_targets
        named = isinstance(targets, tuple) and targets and all(isinstance(one, str) and one for one in targets)
        if targets != ALL_LINEAR and not named:
            hint = f'lora_targets="{ALL_LINEAR}" or lora_targets=["q_proj", "v_proj"]'
            raise wrong("lora_targets", targets, "names no matrices", hint)
        if self.micro_batch is not None and self.micro_batch > self.batch_size:
            what = f"is more than the batch_size, {self.batch_size}"
            raise wrong("micro_batch", self.micro_batch, what, f"micro_batch={self.batch_size}")
        if self.learns_pairs and self.method == "full":
            what = "leaves no reference to learn pairs against, which is the model without its adapter"
            raise wrong("method", "full", what, 'method="lora"')
        if self.method == "full" and self.precision == "fp16":
            raise wrong("precision", "fp16", "has too small a range for weights that are trained", _WIDE)
        if self.sharded and self.method not in ("lora", "full"):
            what = "splits weights that are in 16 or 32 bits"
            raise wrong("sharded", True, f"{what}: method is {self.method!r}", 'method="lora", or sharded=False')
        if self.splits_all and self.has_narrow_states:
            what = "keeps states of blocks that lie in several processes where weights are split"
            raise wrong("optimizer", self.optimizer, what, 'optimizer="adamw", or sharded=False')
        if self.method == "qlora" and self.precision in ("fp32", "autocast"):
            raise wrong("precision", self.precision, "is not for 4-bit weights", 'precision="bf16"')


def _checked_target(target: Any) -> "dict[str, float]":
    hint = 'target={"eval_accuracy": 0.9}'
    if not isinstance(target, Mapping) or len(target) != 1:
        raise wrong("target", target, "is not one metric with its value", hint)
    ((name, value),) = target.items()
    if name not in GOALS:
        near = difflib.get_close_matches(str(name), list(GOALS), n=1, cutoff=0.3)
        accepted = " and ".join(GOALS)
        raise wrong("target", name, f"is not measured; {accepted} are", f'target={{"{(near or [*GOALS])[0]}": 0.9}}')
    check_real(f"target.{name}", value, least=0)
    if name == "eval_accuracy":
        check_real(f"target.{name}", value, below=1.0000001)
    return {name: float(value)}
