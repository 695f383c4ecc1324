"""`allpass finetune`: a fine-tuning without code of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import job_options, progress, screen, template_options, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.planned_machines import tell_machines
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.recipe.packing import Packed

_PREVIEWED = 3


def finetune(
    model: Annotated[str, typer.Argument(help="A name of the Hugging Face hub, or a folder that machines have.")],
    data: Annotated[Path, typer.Argument(help="Rows: JSON lines, CSV, Parquet, or org/name:split of the hub.")],
    method: Annotated[str, typer.Option(help="lora, qlora or full.")] = "lora",
    task: Annotated[
        str | None, typer.Option(help="sft, classification or dpo (pairs); default: what the rows are for.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="METRIC=VALUE", help="End when reached: eval_accuracy=0.9, eval_loss=1.2.")
    ] = None,
    held_out: Annotated[str, typer.Option("--held-out", metavar="SHARE|FILE", help="Rows to measure with.")] = "0.1",
    epochs: Annotated[float | None, typer.Option(help="How often all rows are seen; default: 3.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the optimizer, instead of epochs.")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows in a step; default: 16.")] = None,
    seq: Annotated[int | None, typer.Option("--seq", "--sequence", help="Tokens of a row; default: 1024.")] = None,
    rate: Annotated[float | None, typer.Option("--lr", help="Learning rate; default: 2e-4, for full 2e-5.")] = None,
    rank: Annotated[int | None, typer.Option(help="Of the adapters; default: 16.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp32 or autocast.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw (default), adamw_8bit or paged_adamw_8bit.")] = None,
    sharded: Annotated[
        bool, typer.Option("--sharded", help="Split the weights over GPUs (with --gpu TYPE:N).")
    ] = False,
    adapter: Annotated[
        str | None, typer.Option(metavar="FOLDER|NAME", help="Go on from this LoRA adapter: a folder, or of the hub.")
    ] = None,
    export: Annotated[str | None, typer.Option(help="What is left: adapter (default), merged or both.")] = None,
    push_to: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="Put it into this repository of the hub; --secret HF_TOKEN.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of all that is random; default: 0.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; see the guide.")
    ] = None,
    template: template_options.TemplateFile = None,
    gpu: template_options.Gpu = None,
    nodes: template_options.Nodes = None,
    most_per_switch: template_options.MostPerSwitch = None,
    most_per_rack: template_options.MostPerRack = None,
    elastic: template_options.Elastic = False,
    spot: template_options.Spot = False,
    guaranteed: template_options.Guaranteed = False,
    deadline: job_options.Deadline = None,
    name: job_options.JobName = None,
    max_cost: template_options.MaxCost = None,
    max_duration: template_options.MaxDuration = None,
    max_hourly: template_options.MaxHourly = None,
    max_wait: template_options.MaxWait = None,
    retries: template_options.Retries = None,
    env: template_options.Variables = None,
    secret: template_options.Secrets = None,
    label: template_options.Labels = None,
    from_checkpoint: job_options.FromCheckpoint = None,
    app: Annotated[str | None, typer.Option("--app", help="Name of the app; default: of model and data.")] = None,
    user: job_options.User = None,
    base_image: job_options.Image = None,
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Tell where it fits and what it costs; send nothing.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Show three rows as the model reads them; send nothing.")
    ] = False,
    follow: job_options.Follow = False,
    as_json: Annotated[bool, typer.Option("--json", help="The job object (with --plan, the plan).")] = False,
) -> None:
    """Example: allpass finetune HuggingFaceTB/SmolLM2-135M support.jsonl --target eval_loss=1.2 -d 6h --follow

    Fine-tune a model on rows of text with the built-in recipe. Every row is checked before anything is sent. Rows have
    prompt and completion; messages; text; text and label, for which a classifier is trained; or chosen and rejected,
    of which it learns to prefer the one (DPO). Alpaca's and ShareGPT's are read as well.
    """
    from allpass.recipe.looking import find_tokenizer
    from allpass.recipe.packing import pack
    from allpass.recipe.run import app_name_of, check_model, registration_of
    from allpass.submission import job_request
    from allpass.wire.jobs import JobRequest

    told = {
        "model": model, "method": method, "epochs": epochs, "steps": steps, "batch_size": batch, "lora_rank": rank,
        "sequence_length": seq, "learning_rate": rate, "precision": precision, "seed": seed, "target": _target(target),
        "adapter": adapter, "export": export, "push_to": push_to, "task": task,
        "optimizer": optimizer, "sharded": sharded or None,
    }  # fmt: skip
    settings = {**{key: value for key, value in told.items() if value is not None}, **_settings(setting or [], told)}
    config = check_model(model)
    filled = template_options.template_of(
        template,
        gpu=gpu,
        nodes=nodes,
        most_per_switch=most_per_switch,
        most_per_rack=most_per_rack,
        elastic=elastic,
        spot=spot,
        guaranteed=guaranteed,
        env=env,
        max_cost=max_cost,
        max_duration=max_duration,
        max_hourly=max_hourly,
        max_wait=max_wait,
        retries=retries,
        labels=label,
        secrets=secret,
    )
    tokenizer, why_not = find_tokenizer(model, config)
    aside = _held_out(held_out)
    is_sent = not (preview or only_plan)
    packed = pack(settings, data, held_out=aside, template=filled, config=config, tokenizer=tokenizer, is_sent=is_sent)
    if preview:
        _preview(packed, why_not)
        return
    if only_plan:
        _tell_tokens(packed, why_not)
        _plan(packed, deadline, as_json=as_json)
        return
    options: dict[str, Any] = {
        "name": name,
        "template": packed.template,
        "parameters": packed.parameters,
        "soft_deadline": deadline,
        "from_checkpoint": from_checkpoint,
    }
    job_request("app", None, **options)  # all is checked before the first byte leaves
    registration = registration_of(packed, app or app_name_of(model, data), user, base_image)
    with connect() as client:
        with progress.told(client, "Upload"):
            sent = client.upload(packed.bundle)
        _tell(packed, sent=sent)
        _tell_tokens(packed, why_not)
        if filled.nodes > 1:
            tell_machines(client, plan_fields(packed, deadline))
        registered = client.register_app(registration)
        request = job_request(registered.id, registered.version, **options)
        if isinstance(request, JobRequest):
            job_options.submitted(client, client.submit_job(request), follow=follow, as_json=as_json)


def _target(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    return {
        key: job_options.value_of(value)
        for key, value in template_options.pairs("--target", [text], example="eval_accuracy=0.9").items()
    }


def _settings(texts: Sequence[str], told: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        key: job_options.value_of(value)
        for key, value in template_options.pairs("--set", texts, example="micro_batch=8").items()
    }
    for key in found:
        if told.get(key) is not None:
            raise CommandFailed(f"--set {key}: has an option of its own, which was given", code=WRONG_USAGE)
    return found


def _held_out(text: str) -> float | Path:
    try:
        return float(text)
    except ValueError:
        return Path(text)


def _tell(packed: Packed, *, sent: bool) -> None:
    recipe = packed.recipe
    kind = "pairs" if packed.recipe.learns_pairs else "rows"
    rows = f"{packed.train_rows:,} {kind} to train on, {packed.held_out_rows:,} held out"
    classes = f", {len(packed.labels)} labels" if packed.labels else ""
    how = "sent" if sent else "unchanged: reused"
    screen.say(f"Data      {rows}{classes} ({words.size(packed.bundle.size_bytes)}, {how})")
    if packed.ignored:
        screen.say(f"          not used: {screen.printable(', '.join(packed.ignored))}")
    batch = f"batch {recipe.batch_size}, cut as its GPU allows"
    if recipe.micro_batch is not None:
        batch = f"batch {recipe.batch_size} = {recipe.rows_at_once} x {recipe.accumulation} accumulation"
    length = f"{recipe.sequence_length} tokens · {packed.total_steps:,} steps"
    rank = "" if recipe.method == "full" else f" r{recipe.lora_rank}"
    if recipe.adapter is not None:
        screen.say(f"          goes on from the adapter {recipe.adapter}")
    pairs = f" · dpo, beta {recipe.beta:g}" if recipe.learns_pairs else ""
    screen.say(f"Recipe    {recipe.model} · {recipe.method}{rank}{pairs} · {recipe.numbers} · {batch} · {length}")


def _tell_tokens(packed: Packed, why_not: str | None) -> None:
    """What the rows come to, as the model reads them."""
    if packed.looked is None:
        screen.say(f"Tokens    are counted on the machine: {why_not}")
        return
    screen.say(f"Tokens    {packed.looked.told()}")
    for remark in packed.looked.remarks():
        screen.say(f"          {screen.printable(remark)}")


def _preview(packed: Packed, why_not: str | None) -> None:
    if packed.looked is None:
        raise CommandFailed(f"--preview: {why_not}", code=WRONG_USAGE)
    _tell_tokens(packed, None)
    for text in packed.looked.examples(_PREVIEWED):
        typer.echo("\n".join(screen.printable(line) for line in text.splitlines()) + "\n")


def _plan(packed: Packed, deadline: str | None, *, as_json: bool) -> None:
    from allpass.cli.plan import ask

    ask(plan_fields(packed, deadline), as_json=as_json)


def plan_fields(packed: Packed, deadline: str | None) -> dict[str, Any]:
    """The very training that would be submitted, as a question."""
    recipe, model, told = packed.recipe, packed.template.model, packed.template.training
    gpus, nodes, placement = packed.template.gpu, packed.template.nodes, packed.template.placement
    shape = None if model is None else model.config
    return {
        **({"model": recipe.model} if shape is None else {"config": {**shape, "_name_or_path": recipe.model}}),
        "method": recipe.method,
        "batch": recipe.batch_size * recipe.sequences_per_row,
        "sequence": recipe.sequence_length,
        "precision": "amp_bf16" if recipe.numbers == "autocast" else recipe.numbers,
        "layout": {**recipe.chosen_cut, **({} if gpus.count == 1 else {"gpus": gpus.count})},
        "steps": packed.total_steps,
        **({} if nodes == 1 else {"nodes": nodes}),
        **({} if placement.most_per_switch is None else {"most_per_switch": placement.most_per_switch}),
        **({} if placement.most_per_rack is None else {"most_per_rack": placement.most_per_rack}),
        **({"spot": True} if packed.template.priority_class == "spot" else {}),
        **({} if gpus.type is None else {"gpu_type": gpus.type}),
        **({} if told.row_tokens is None else {"row_tokens": told.row_tokens}),
        **({} if told.precision_by_gpu is None else {"precision_by_gpu": told.precision_by_gpu}),
        **({} if recipe.method == "full" else {"rank": recipe.lora_rank, "adapter_dropout": recipe.lora_dropout}),
        **({"adapter_dropout": 0.0, "reference_pass": True} if recipe.learns_pairs else {}),
        **({} if recipe.export == "adapter" else {"export": recipe.export}),
        **({"optimizer": recipe.optimizer} if recipe.has_narrow_states else {}),
        **({"narrow_adapters": True} if recipe.has_narrow_adapters else {}),
        **({"sharded": True} if recipe.sharded else {}),
        **({"loss": "recomputed"} if recipe.takes_chunks else {}),
        **({} if deadline is None else {"soft_deadline": deadline}),
    }
