"""What a resize costs, by a model: the rest of a step, the state over the network, a process that starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResizeModel:
    """`drops_step`: GPUs that leave go at once and the rest repeats the step; else they finish it, and whoever gets
    them waits for that."""

    name: str
    step_s: float = 0.0
    state_bytes: float = 0.0
    bytes_per_s: float = 1.25e9  # 10 Gbit/s
    start_s: float = 0.0
    drops_step: bool = True

    @property
    def pause_s(self) -> float:
        """Of a job that is resized or starts again; a whole step where it is repeated, which is the most it can be."""
        return (self.step_s if self.drops_step else 0.0) + self.state_bytes / self.bytes_per_s + self.start_s

    @property
    def handover_s(self) -> float:
        """The longest that a newcomer waits for GPUs that another job gives up."""
        return 0.0 if self.drops_step else self.step_s


# State: weights of 8.03e9 parameters in bf16, which LoRA keeps frozen with an adapter of 0.2 % in fp32 with Adam's two
# moments; a full fine-tune has fp32 weights and both moments as well. A process with its libraries takes 8 s to start.
_WEIGHTS_BYTES = 8.03e9 * 2
FREE = ResizeModel("free")
TEN_SECONDS = ResizeModel("10 s", start_s=10.0)
# The median pause of `benchmarks.elastic` where a process joins, which has loaded everything before anybody stops. Its
# model is tiny, on CPUs; and a job that begins again from nothing has nobody who would train on meanwhile.
MEASURED = ResizeModel("measured", start_s=0.12)
TOY = ResizeModel("toy", step_s=0.05, state_bytes=4e5, start_s=2.0)
LORA_8B = ResizeModel("8B LoRA", step_s=5.0, state_bytes=_WEIGHTS_BYTES + 8.03e9 * 0.002 * 12, start_s=8.0)
FULL_8B = ResizeModel("8B full", step_s=20.0, state_bytes=_WEIGHTS_BYTES + 8.03e9 * 12, start_s=8.0)
LORA_8B_FINISHES = ResizeModel(
    "8B LoRA, step finished", LORA_8B.step_s, LORA_8B.state_bytes, start_s=LORA_8B.start_s, drops_step=False
)
MODELS = {one.name: one for one in (FREE, TEN_SECONDS, MEASURED, TOY, LORA_8B, FULL_8B, LORA_8B_FINISHES)}
