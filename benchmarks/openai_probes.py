"""One probe for each method of OpenAI's client: what it has to do, held strictly to the client's own types."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.api.openai.conftest import chats, strictly
from tests.e2e.test_openai_door import chatting_llama

_TUNED = 3
_PATIENCE_S = 300.0
_OURS = {"allpass": {"template": {"gpu": {"memory_gb": 8}}, "settings": {"precision": "fp32"}}}
_ASKED: Any = [{"role": "user", "content": "1+1="}]


@dataclass(frozen=True)
class Ground:
    """`models` were fine-tuned on `base` by `jobs`, which have succeeded. `client` is either of the two."""

    client: Any
    base: str
    models: tuple[str, ...]
    jobs: tuple[str, ...]

    @classmethod
    def made(cls, folder: Path, client: OpenAI) -> Ground:
        model_folder = folder / "model"
        base = chatting_llama(model_folder)
        model_folder.chmod(0o755)
        file = client.files.create(file=("sums.jsonl", chats(12)), purpose="fine-tune")
        jobs = [
            client.fine_tuning.jobs.create(
                model=base, training_file=file.id, seed=seed, suffix=f"n{seed}", extra_body=_OURS,
                hyperparameters={"n_epochs": 1, "batch_size": 4}, metadata={"made": "here"},
            ).id
            for seed in range(_TUNED)
        ]  # fmt: skip
        return cls(client, base, tuple(_result(client, one) for one in jobs), tuple(jobs))

    def with_client(self, client: Any) -> Ground:
        return replace(self, client=client)

    async def new_job(self) -> Any:
        """One that goes on for long."""
        file_id = (await answer(self.client.files.create(file=("a.jsonl", chats(12)), purpose="fine-tune"))).id
        return await answer(
            self.client.fine_tuning.jobs.create(
                model=self.base, training_file=file_id, extra_body=_OURS, hyperparameters={"n_epochs": 50}
            )
        )


def _result(client: OpenAI, job_id: str) -> str:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        job = client.fine_tuning.jobs.retrieve(job_id)
        if job.status in ("succeeded", "failed", "cancelled"):
            if job.fine_tuned_model is None:
                raise AssertionError(f"{job_id} has {job.status}: {job.error}")
            return job.fine_tuned_model
        time.sleep(0.2)
    raise AssertionError(f"{job_id} is not done after {_PATIENCE_S:g} s")


async def answer(told: Any) -> Any:
    """Of either client, checked."""
    found = await told if inspect.isawaitable(told) else told
    if hasattr(found, "to_dict"):
        strictly(found)
    return found


async def items(told: Any, most: int = 500) -> list[Any]:
    """All items of a list, page by page, each checked."""
    found = []
    if hasattr(told, "__aiter__"):
        async for one in told:
            found.append(one)
            if len(found) == most:
                break
    else:
        for one in told:
            found.append(one)
            if len(found) == most:
                break
    for one in found:
        strictly(one)
    return found


def check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


async def _file(ground: Ground) -> Any:
    return await answer(ground.client.files.create(file=("a.jsonl", chats(12)), purpose="fine-tune"))


async def files_create(ground: Ground) -> None:
    check((await _file(ground)).status == "processed", "it is not processed")


async def files_retrieve(ground: Ground) -> None:
    file = await _file(ground)
    check(await answer(ground.client.files.retrieve(file.id)) == file, "it is another one")


async def files_list(ground: Ground) -> None:
    file = await _file(ground)
    found = await items(ground.client.files.list(limit=2, purpose="fine-tune"))
    check(file.id in [one.id for one in found], "it is not listed")


async def files_content(ground: Ground) -> None:
    file = await _file(ground)
    check((await answer(ground.client.files.content(file.id))).content == chats(12), "the content is another one")


async def files_retrieve_content(ground: Ground) -> None:
    file = await _file(ground)
    check(chats(12).decode() in str(await answer(ground.client.files.retrieve_content(file.id))), "another content")


async def files_wait(ground: Ground) -> None:
    file = await _file(ground)
    check((await answer(ground.client.files.wait_for_processing(file.id))).status == "processed", "it is not processed")


async def files_delete(ground: Ground) -> None:
    check((await answer(ground.client.files.delete((await _file(ground)).id))).deleted, "it is not deleted")


async def _upload(ground: Ground) -> Any:
    return await answer(
        ground.client.uploads.create(
            bytes=len(chats(12)), filename="a.jsonl", mime_type="text/jsonl", purpose="fine-tune"
        )
    )


async def uploads_create(ground: Ground) -> None:
    check((await _upload(ground)).status == "pending", "it is not open")


async def uploads_parts_create(ground: Ground) -> None:
    upload = await _upload(ground)
    part = await answer(ground.client.uploads.parts.create(upload.id, data=chats(12)[:10]))
    check(part.upload_id == upload.id, "it is of another upload")


async def uploads_complete(ground: Ground) -> None:
    upload = await _upload(ground)
    halves = (chats(12)[:100], chats(12)[100:])
    parts = [(await answer(ground.client.uploads.parts.create(upload.id, data=half))).id for half in halves]
    done = await answer(ground.client.uploads.complete(upload.id, part_ids=parts))
    content = (await answer(ground.client.files.content(done.file.id))).content
    check(content == chats(12), "the parts are not put together")


async def uploads_cancel(ground: Ground) -> None:
    upload = await _upload(ground)
    check((await answer(ground.client.uploads.cancel(upload.id))).status == "cancelled", "it is not cancelled")


async def uploads_upload_file_chunked(ground: Ground) -> None:
    done = await answer(
        ground.client.uploads.upload_file_chunked(
            file=chats(12), filename="a.jsonl", bytes=len(chats(12)), mime_type="text/jsonl", purpose="fine-tune",
            part_size=500,
        )
    )  # fmt: skip
    check(done.status == "completed", "it is not completed")


async def jobs_create(ground: Ground) -> None:
    job = await ground.new_job()
    check(job.status == "validating_files", "it is not being validated")
    await answer(ground.client.fine_tuning.jobs.cancel(job.id))


async def jobs_retrieve(ground: Ground) -> None:
    job = await answer(ground.client.fine_tuning.jobs.retrieve(ground.jobs[0]))
    check(job.status == "succeeded" and job.fine_tuned_model == ground.models[0], "it is another one")


async def jobs_list(ground: Ground) -> None:
    found = await items(ground.client.fine_tuning.jobs.list(limit=2, metadata={"made": "here"}))
    check({one.id for one in found} == set(ground.jobs), "others are listed")


async def jobs_list_events(ground: Ground) -> None:
    found = await items(ground.client.fine_tuning.jobs.list_events(ground.jobs[0], limit=2))
    check(len({one.id for one in found}) == len(found) > 3, "not each once")


async def jobs_checkpoints_list(ground: Ground) -> None:
    found = await items(ground.client.fine_tuning.jobs.checkpoints.list(ground.jobs[0], limit=1))
    check(all(one.fine_tuning_job_id == ground.jobs[0] for one in found), "another job's")


async def _submitted(ground: Ground) -> Any:
    """A job that has become one of the service's."""
    job = await ground.new_job()
    until = time.monotonic() + _PATIENCE_S
    while job.status == "validating_files" and time.monotonic() < until:
        job = await answer(ground.client.fine_tuning.jobs.retrieve(job.id))
    return job


async def jobs_cancel(ground: Ground) -> None:
    job = await _submitted(ground)
    check((await answer(ground.client.fine_tuning.jobs.cancel(job.id))).status == "cancelled", "it is not cancelled")


async def jobs_pause(ground: Ground) -> None:
    job = await _submitted(ground)
    check((await answer(ground.client.fine_tuning.jobs.pause(job.id))).id == job.id, "it is another one")
    await answer(ground.client.fine_tuning.jobs.cancel(job.id))


async def jobs_resume(ground: Ground) -> None:
    job = await _submitted(ground)
    await answer(ground.client.fine_tuning.jobs.pause(job.id))
    resumed = await answer(ground.client.fine_tuning.jobs.resume(job.id))
    check(resumed.status in ("queued", "running"), f"it is {resumed.status}")
    await answer(ground.client.fine_tuning.jobs.cancel(job.id))


async def models_list(ground: Ground) -> None:
    names = [one.id for one in await items(ground.client.models.list())]
    check({ground.models[0], "gpt-4o-mini"} <= set(names), "models are missing")


async def models_retrieve(ground: Ground) -> None:
    check((await answer(ground.client.models.retrieve(ground.models[0]))).id == ground.models[0], "another one")


async def models_delete(ground: Ground) -> None:
    """The last one for the blocking client, the one before it for the other."""
    model = ground.models[-1] if isinstance(ground.client, OpenAI) else ground.models[-2]
    check((await answer(ground.client.models.delete(model))).deleted, "it is not deleted")


async def chat_create(ground: Ground) -> None:
    of = ground.client.chat.completions
    options: Any = {"model": ground.models[0], "messages": _ASKED, "max_tokens": 4, "temperature": 0}
    whole = await answer(of.create(**options))
    told = of.create(**options, stream=True)
    pieces = await items(await told if inspect.isawaitable(told) else told)
    said = "".join(one.choices[0].delta.content or "" for one in pieces)
    check(whole.choices[0].message.content == said, "streamed it says something else")


async def _to_the_end(ground: Ground) -> dict[str, Any]:
    """Options with which the model comes to an end: the client calls an answer that was cut off an error."""
    options: Any = {"model": ground.models[0], "messages": _ASKED, "max_tokens": 8, "temperature": 0}
    whole = (await answer(ground.client.chat.completions.create(**options))).choices[0].message.content
    return {**options, "stop": whole[-1]}


async def chat_stream(ground: Ground) -> None:
    options = await _to_the_end(ground)
    manager = ground.client.chat.completions.stream(**options)
    if isinstance(ground.client, OpenAI):
        with manager as events:
            final = events.get_final_completion()
    else:
        async with manager as events:
            final = await events.get_final_completion()
    check(final.choices[0].finish_reason == "stop", "it has no end")


async def chat_parse(ground: Ground) -> None:
    """Without a format there is nothing to parse: the answer as it is."""
    parsed = ground.client.chat.completions.parse(**await _to_the_end(ground))
    parsed = await parsed if inspect.isawaitable(parsed) else parsed
    check(parsed.choices[0].message.content is not None, "it says nothing")


async def completions_create(ground: Ground) -> None:
    told = await answer(ground.client.completions.create(model=ground.base, prompt="1+1=", max_tokens=4))
    check(told.usage.completion_tokens <= 4, "it says too much")


Probe = Callable[[Ground], Awaitable[Any]]
PROBES: Mapping[str, Probe] = {
    "files.create": files_create,
    "files.retrieve": files_retrieve,
    "files.list": files_list,
    "files.content": files_content,
    "files.retrieve_content": files_retrieve_content,
    "files.wait_for_processing": files_wait,
    "files.delete": files_delete,
    "uploads.create": uploads_create,
    "uploads.parts.create": uploads_parts_create,
    "uploads.complete": uploads_complete,
    "uploads.cancel": uploads_cancel,
    "uploads.upload_file_chunked": uploads_upload_file_chunked,
    "fine_tuning.jobs.create": jobs_create,
    "fine_tuning.jobs.retrieve": jobs_retrieve,
    "fine_tuning.jobs.list": jobs_list,
    "fine_tuning.jobs.list_events": jobs_list_events,
    "fine_tuning.jobs.checkpoints.list": jobs_checkpoints_list,
    "fine_tuning.jobs.cancel": jobs_cancel,
    "fine_tuning.jobs.pause": jobs_pause,
    "fine_tuning.jobs.resume": jobs_resume,
    "models.list": models_list,
    "models.retrieve": models_retrieve,
    "models.delete": models_delete,
    "chat.completions.create": chat_create,
    "chat.completions.stream": chat_stream,
    "chat.completions.parse": chat_parse,
    "completions.create": completions_create,
}


def _of(call: Callable[[Any], Any]) -> Probe:
    async def probe(ground: Ground) -> Any:
        told = call(ground.client)
        return await items(told) if hasattr(told, "__aiter__") and not inspect.isawaitable(told) else await answer(told)

    return probe


_GRADER: Any = {"type": "string_check", "name": "a", "input": "a", "operation": "eq", "reference": "a"}
REFUSED: Mapping[str, Probe] = {
    "fine_tuning.checkpoints.permissions.create": _of(
        lambda client: client.fine_tuning.checkpoints.permissions.create("ft:x", project_ids=["p"])
    ),
    "fine_tuning.checkpoints.permissions.retrieve": _of(
        lambda client: client.fine_tuning.checkpoints.permissions.retrieve("ft:x")
    ),
    "fine_tuning.checkpoints.permissions.list": _of(
        lambda client: client.fine_tuning.checkpoints.permissions.list("ft:x")
    ),
    "fine_tuning.checkpoints.permissions.delete": _of(
        lambda client: client.fine_tuning.checkpoints.permissions.delete("p", fine_tuned_model_checkpoint="ft:x")
    ),
    "fine_tuning.alpha.graders.run": _of(
        lambda client: client.fine_tuning.alpha.graders.run(grader=_GRADER, model_sample="a")
    ),
    "fine_tuning.alpha.graders.validate": _of(lambda client: client.fine_tuning.alpha.graders.validate(grader=_GRADER)),
    "chat.completions.retrieve": _of(lambda client: client.chat.completions.retrieve("x")),
    "chat.completions.update": _of(lambda client: client.chat.completions.update("x", metadata=None)),
    "chat.completions.list": _of(lambda client: client.chat.completions.list()),
    "chat.completions.delete": _of(lambda client: client.chat.completions.delete("x")),
    "chat.completions.messages.list": _of(lambda client: client.chat.completions.messages.list("x")),
}
