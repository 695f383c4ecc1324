"""How long a step takes by the figures of a GPU."""

from __future__ import annotations

from dataclasses import replace

from app.core.memory.catalogue import model_named
from app.core.memory.training import Training
from app.core.roofline import GPUS, step_ms


def test_a_reference_takes_a_pass_without_gradients() -> None:
    """Of an adapter's step, which is a pass forward and one back, that is about half as much again; recomputed
    activations make the step longer, and the pass before no longer."""
    model = model_named("llama-3-8b")
    for checkpointing, least, most in ((False, 1.3, 1.6), (True, 1.2, 1.45)):
        plain = Training(method="lora", batch=4, sequence=1024, checkpointing=checkpointing)
        longer = step_ms(model, replace(plain, reference_pass=True), GPUS["a100"]) / step_ms(model, plain, GPUS["a100"])
        assert least < longer < most


def test_a_loss_by_chunks_takes_the_logits_once_more() -> None:
    """Of a small model with a large vocabulary that is a tenth of a step, of a large one hardly anything."""
    for name, most in (("llama-3.2-1b", 1.15), ("llama-3-8b", 1.05)):
        model, plain = model_named(name), Training(method="lora", batch=4, sequence=1024)
        by_chunks = replace(plain, loss="recomputed")
        assert 1.01 < step_ms(model, by_chunks, GPUS["a100"]) / step_ms(model, plain, GPUS["a100"]) < most
