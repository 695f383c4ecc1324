"""Modal's own client, unmodified, against the emulator: both generations of sandboxes, and commands in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from providers.modal.sdk import is_first_generation, modal
from tests.providers.modal_emulator import EmulatedModal


@pytest.fixture
async def client(shared_modal: EmulatedModal) -> AsyncIterator[Any]:
    client = await shared_modal.client()
    yield client
    await client.close.aio()


async def create(client: Any, script: str, **fields: Any) -> Any:
    app = await modal.App.lookup.aio("somebodys", client=client, create_if_missing=True)
    image = modal.Image.debian_slim()
    return await modal.Sandbox.create.aio("sh", "-c", script, app=app, image=image, client=client, **fields)


@pytest.mark.parametrize("gpu", ["T4:2", None])
async def test_a_sandbox_from_start_to_end(client: Any, gpu: str | None) -> None:
    """Either generation runs its program with its environment, shows its output, and ends with its exit code."""
    secret = modal.Secret.from_dict({"SECRET": "s1"})
    sandbox = await create(client, "echo $A $SECRET; exit 3", gpu=gpu, env={"A": "b"}, secrets=[secret], timeout=60)
    assert is_first_generation(sandbox.object_id) is (gpu is not None)
    await sandbox.wait.aio()
    assert await sandbox.stdout.read.aio() == "b s1\n"
    assert await sandbox.stderr.read.aio() == ""
    assert (sandbox.returncode, await sandbox.poll.aio()) == (3, 3)


@pytest.mark.parametrize("gpu", ["L4", None])
async def test_a_sandbox_is_found_and_ended(client: Any, gpu: str | None) -> None:
    """By id, by name and by tag; its tags can be replaced; an end is told, and empties the listing."""
    name = f"named-{gpu}"
    sandbox = await create(client, "sleep 60", gpu=gpu, name=name, tags={"job": name})
    app = await modal.App.lookup.aio("somebodys", client=client)

    async def tagged(**tags: str) -> list[str]:
        listed = modal.Sandbox.list.aio(app_id=app.app_id, tags=tags, client=client)
        return [each.object_id async for each in listed]

    assert await tagged(job=name) == [sandbox.object_id]
    assert (await modal.Sandbox.from_name.aio("somebodys", name, client=client)).object_id == sandbox.object_id
    same = await modal.Sandbox.from_id.aio(sandbox.object_id, client=client)
    await same.set_tags.aio({"other": "one"})
    assert await sandbox.get_tags.aio() == {"other": "one"}
    assert await same.poll.aio() is None
    assert await same.terminate.aio(wait=True) == 137
    assert await tagged(other="one") == []
    with pytest.raises(modal.exception.NotFoundError):
        await modal.Sandbox.from_name.aio("somebodys", name, client=client)
    with pytest.raises(modal.exception.SandboxTerminatedError):
        await sandbox.wait.aio()


@pytest.mark.parametrize("gpu", ["T4", None])
async def test_a_command_in_a_sandbox(shared_modal: EmulatedModal, client: Any, gpu: str | None) -> None:
    """A command reads, writes and leaves with its own exit code; the client fetches a token that is refused anew."""
    sandbox = await create(client, "sleep 60", gpu=gpu)
    shared_modal.until(sandbox.object_id, "running")
    shared_modal.switch(strike_each_attempt=True)
    shared_modal.fault("exec", "error", args={"status": "UNAUTHENTICATED"})
    command = await sandbox.exec.aio("sh", "-c", "read line; echo got $line; echo err >&2; exit 5")
    command.stdin.write(b"ping\n")
    command.stdin.write_eof()
    await command.stdin.drain.aio()
    assert await command.wait.aio() == 5
    assert await command.stdout.read.aio() == "got ping\n"
    assert await command.stderr.read.aio() == "err\n"
    await sandbox.terminate.aio(wait=True)


async def test_a_stranger_is_refused(shared_modal: EmulatedModal) -> None:
    """Id and secret of the token are both checked."""
    for token in (("ak-test", "as-wrong"), ("ak-wrong", "as-test")):
        stranger = modal.Client(shared_modal.url, 1, token)
        await stranger.__aenter__()  # type: ignore[no-untyped-call]  # their stubs lack this
        with pytest.raises(modal.exception.AuthError):
            await stranger.hello.aio()
        await stranger.close.aio()
