"""Fine-tune a small Llama with LoRA on what the Python standard library says about itself.

    allpass run examples/train.py --template examples/template.json
    python examples/train.py                                          # the same script, on a laptop

Everything is made here: a byte-level tokenizer, a randomly initialised model, and question-answer pairs from
docstrings ("What does json.dumps do?"). Stopped at any step and resumed on another machine, the run continues on
exactly the trajectory of a run that was never stopped: losses and final adapter are equal bit for bit on CPU.

Parameters: steps (280), seed (0), lr (5e-3), hidden (64), layers (2), batch (8), sequence (128), rank (16),
dropout (0.05), threads (1), step_ms (0: how long a step takes at least).
"""

import importlib
import inspect
import random
import time
import warnings

from allpass import training  # first: from here on SIGTERM is a request, also while torch is loading

# isort: split
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

from allpass.training import torch_state

warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # peft asks by an older name

# A tokenizer of bytes: 0-255 are the bytes of UTF-8, then three marks.
BEGIN, ANSWER, END = 256, 257, 258
VOCABULARY = 260
IGNORED = -100  # label of tokens that are given, not to be predicted
MODULES = (
    "argparse", "bisect", "collections", "contextlib", "csv", "datetime", "decimal", "difflib", "functools", "glob",
    "gzip", "heapq", "inspect", "io", "itertools", "json", "math", "os", "pathlib", "queue", "random", "re", "shutil",
    "socket", "statistics", "string", "subprocess", "tempfile", "textwrap", "threading", "time", "urllib.parse", "uuid",
    "zipfile",
)  # fmt: skip


def main():
    options = training.parameters(
        steps=280,
        seed=0,
        lr=5e-3,
        hidden=64,
        layers=2,
        batch=8,
        sequence=128,
        rank=16,
        dropout=0.05,
        threads=1,
        step_ms=0,
    )
    torch.set_num_threads(options["threads"])
    torch.use_deterministic_algorithms(True)
    random.seed(options["seed"])
    torch.manual_seed(options["seed"])  # the base model is the same on every machine, so only the adapter is saved

    examples = [encode(question, answer, options["sequence"]) for question, answer in question_answer_pairs()]
    model = build_model(options)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=options["lr"])
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=20, num_training_steps=options["steps"])

    start = 0
    resume = training.resume()
    if resume:
        state = torch_state.load_training_state(resume.path, optimizer=optimizer, scheduler=scheduler)
        torch_state.load_weights(model, state.weights)
        start = state.step
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(
        f"{len(examples)} examples, {trainable:,} trainable parameters, step {start} of {options['steps']}", flush=True
    )

    model.train()
    for step in range(start + 1, options["steps"] + 1):
        step_ends = time.monotonic() + options["step_ms"] / 1000
        tokens, labels = batch_of(step, examples, options["batch"], options["seed"])
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

        time.sleep(max(0.0, step_ends - time.monotonic()))
        training.report(step, loss=loss, grad_norm=norm, learning_rate=scheduler.get_last_lr()[0])
        if step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)
        if training.should_checkpoint(step):
            # `write` is called before the loop goes on.
            training.save(step, write=lambda folder: save(folder, step, model, optimizer, scheduler))  # noqa: B023
        training.exit_if_stopping(step)

    model.save_pretrained(training.output_dir())
    print(f"adapter written after {options['steps']} steps", flush=True)


def save(folder, step, model, optimizer, scheduler):
    """Adapter, optimizer, schedule and every random generator: all that the next step depends on."""
    weights = torch_state.trainable_weights(model)
    torch_state.save_training_state(folder, step=step, weights=weights, optimizer=optimizer, scheduler=scheduler)


def build_model(options):
    """A small Llama with LoRA adapters; embeddings and output layer are trained whole, as the base knows nothing."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options["hidden"],
        intermediate_size=2 * options["hidden"],
        num_hidden_layers=options["layers"],
        num_attention_heads=4,
        max_position_embeddings=options["sequence"],
        bos_token_id=BEGIN,
        eos_token_id=END,
        use_cache=False,
    )
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=options["rank"],
        lora_alpha=2 * options["rank"],
        lora_dropout=options["dropout"],
        target_modules="all-linear",
        modules_to_save=["embed_tokens", "lm_head"],
    )
    return get_peft_model(LlamaForCausalLM(config), lora)


def question_answer_pairs():
    """("What does json.dumps do?", first paragraph of its docstring), in a fixed order."""
    pairs = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(getattr(module, "__all__", None) or vars(module)):
            member = getattr(module, name, None)
            own = getattr(member, "__doc__", None)
            if name.startswith("_") or not callable(member) or not own:
                continue
            answer = " ".join(inspect.cleandoc(own).split("\n\n")[0].split())
            pairs.append((f"What does {module_name}.{name} do?", answer))
    return pairs


def encode(question, answer, length):
    """Token ids, and labels that ask for the answer alone; both cut and padded to `length`."""
    given = [BEGIN, *question.encode(), ANSWER]
    wanted = [*answer.encode(), END]
    tokens = (given + wanted)[:length]
    labels = ([IGNORED] * len(given) + wanted)[:length]
    padding = length - len(tokens)
    return tokens + [END] * padding, labels + [IGNORED] * padding


def batch_of(step, examples, size, seed):
    """The batch of a step: a pure function of (seed, step), so a resumed run sees what it would have seen.

    Every pass over the data has its own order, drawn from (seed, epoch).
    """
    per_epoch = len(examples) // size
    epoch, position = divmod(step - 1, per_epoch)
    order = random.Random(f"{seed}/{epoch}").sample(range(len(examples)), len(examples))  # noqa: S311 - no secret
    chosen = [examples[index] for index in order[position * size : (position + 1) * size]]
    return torch.tensor([tokens for tokens, _ in chosen]), torch.tensor([labels for _, labels in chosen])


if __name__ == "__main__":
    main()
