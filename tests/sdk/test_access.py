"""Keys and secrets from the client and the command line: what is sent, what is printed, and what never is."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from allpass.client.access import AccessMethods, AsyncAccessMethods
from allpass.errors import InvalidInput
from allpass.submission import with_secrets
from allpass.wire.access import KeyRequest, SecretRequest
from allpass.wire.template import Template
from tests.sdk.fake_service import KEY, NOW, FakeService, json_of, ok, problem, served

TOKEN = "hf_very_private_0123"
GROUPS = {"key": ("create", "list", "revoke"), "secret": ("set", "list", "delete")}
SECRET = {"name": "HF_TOKEN", "created_at": NOW, "changed_at": NOW, "used_by_jobs": 2}
PLAIN_KEY = {
    "id": "key_1", "name": "ci", "prefix": "ak_1234", "scopes": ["read", "submit"], "created_at": NOW,
    "expires_at": None, "last_used_at": None, "revoked_at": None,
}  # fmt: skip
ENTRY = {
    "id": 7, "at": NOW, "key_id": "key_1", "action": "POST /v1/jobs", "object_id": "job_1", "request_id": "req_1",
    "status": 201,
}  # fmt: skip


class AccessService(FakeService):
    """The routes of keys and secrets, on top of the others."""

    def _route(self, request: httpx.Request) -> httpx.Response:
        route = f"{request.method} {request.url.path}"
        if route == "POST /v1/keys":
            asked = KeyRequest.model_validate_json(request.content).model_dump(mode="json")
            return ok({**PLAIN_KEY, **asked, "key": "ak_1234_secret"}, 201)
        if request.method == "PUT":
            SecretRequest.model_validate_json(request.content)
            return ok({**SECRET, "name": request.url.path.rpartition("/")[2]})
        answers: dict[str, dict[str, Any]] = {
            "GET /v1/keys": {"data": [PLAIN_KEY, {**PLAIN_KEY, "id": "key_0", "revoked_at": NOW}]},
            "DELETE /v1/keys/key_1": {**PLAIN_KEY, "revoked_at": NOW},
            "GET /v1/secrets": {"data": [SECRET]},
            "DELETE /v1/secrets/HF_TOKEN": SECRET,
            "GET /v1/audit": {"data": [ENTRY]},
        }
        if route in answers:
            return ok(answers[route])
        return super()._route(request) if request.method != "DELETE" else problem(404, "not_found", "no such thing")


@pytest.fixture
def service() -> AccessService:
    return AccessService()


@pytest.fixture
def live(service: AccessService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccessService]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text("print(1)")
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, list(words), input=stdin)


def finished(*words: str, stdin: str | None = None) -> str:
    result = call(*words, stdin=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def test_the_client_speaks_of_keys(service: AccessService, client: Client) -> None:
    """Create (under an idempotency key), list, revoke; the key itself is in no repr."""
    expires_at = datetime(2031, 1, 1, tzinfo=UTC)
    made = client.create_key("ci", ["submit"], expires_at=expires_at)
    assert (made.key, made.expires_at, made.scopes) == ("ak_1234_secret", expires_at, ["submit"])
    assert "ak_1234_secret" not in repr(made)
    assert "idempotency-key" in service.requests[0].headers
    assert [one.id for one in client.keys()] == ["key_1", "key_0"]  # noqa: SIM118 (no dict)
    assert client.revoke_key("key_1").revoked_at is not None
    assert [entry.action for entry in client.audit()] == ["POST /v1/jobs"]


def test_wrong_keys_never_travel(service: AccessService, client: Client) -> None:
    """An unknown scope and an instant without a zone are told before anything is sent."""
    with pytest.raises(InvalidInput, match="scopes"):
        client.create_key("ci", ["root"])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(InvalidInput, match="expires_at"):
        client.create_key("ci", expires_at=datetime(2031, 1, 1))
    with pytest.raises(InvalidInput, match="is text, not int") as refused:
        client.set_secret("HF_TOKEN", 1234567)  # type: ignore[arg-type]  # wrong on purpose
    assert "1234567" not in str(refused.value)
    assert service.requests == []


def test_the_client_speaks_of_secrets(service: AccessService, client: Client) -> None:
    """Set, list, delete. The value is in the request's body and nowhere else."""
    stored = client.set_secret("HF_TOKEN", TOKEN)
    (sent,) = service.requests
    assert (sent.method, sent.url.path, json_of(sent)) == ("PUT", "/v1/secrets/HF_TOKEN", {"value": TOKEN})
    assert TOKEN not in repr(stored) + repr(SecretRequest(value=TOKEN)) + str(sent.url) + str(sent.headers)
    assert [one.name for one in client.secrets()] == ["HF_TOKEN"]
    assert client.delete_secret("HF_TOKEN").used_by_jobs == 2


async def test_the_async_client_has_the_same_methods(service: AccessService) -> None:
    """Name by name, with the same parameters; they reach the same routes."""
    for name, method in vars(AccessMethods).items():
        if not name.startswith("_"):
            assert (
                inspect.signature(method).parameters == inspect.signature(vars(AsyncAccessMethods)[name]).parameters
            ), name
    async with AsyncClient(service.base, KEY, transport=httpx.MockTransport(service)) as client:
        assert (await client.create_key("ci")).key == "ak_1234_secret"
        assert [one.id async for one in client.keys()] == ["key_1", "key_0"]  # noqa: SIM118 (no dict)
        assert (await client.revoke_key("key_1")).revoked_at is not None
        assert (await client.set_secret("HF_TOKEN", TOKEN)).name == "HF_TOKEN"
        assert [one.name async for one in client.secrets()] == ["HF_TOKEN"]
        assert (await client.delete_secret("HF_TOKEN")).used_by_jobs == 2
        assert [entry.id async for entry in client.audit()] == [7]


def test_run_names_secrets(live: AccessService) -> None:
    """--secret adds to what the template names, each once."""
    Path("t.json").write_text('{"secrets": ["WANDB_KEY", "HF_TOKEN"]}')
    finished("run", "train.py", "-t", "t.json", "--secret", "HF_TOKEN", "--secret", "S3_KEY")
    (job,) = live.jobs.values()
    assert job["template"]["secrets"] == ["WANDB_KEY", "HF_TOKEN", "S3_KEY"]
    refused = call("run", "train.py", "--secret", "hf_token")
    assert refused.exit_code != 0
    assert "'hf_token' is not the name of a secret" in refused.stderr
    assert len(live.jobs) == 1


@pytest.mark.parametrize("names", ["HF_TOKEN", ["PATH"], ["ALLPASS_JOB_ID"], [3], [f"S{n}" for n in range(21)]])
def test_names_that_cannot_be_secrets_are_refused(names: Any) -> None:
    """In words, before anything is sent."""
    with pytest.raises(InvalidInput, match="secrets: "):
        with_secrets(Template(), names)


def test_a_template_without_secrets_stays_as_it_is() -> None:
    """Nothing is set that was not asked for: older servers know every field that is sent."""
    template = Template()
    assert with_secrets(template, None) is template
    assert "secrets" not in template.model_dump(exclude_unset=True)


def test_a_secret_is_set_from_a_pipe_or_a_file(live: AccessService, tmp_path: Path) -> None:
    """One newline at the end is dropped; the value is printed nowhere."""
    (tmp_path / "token").write_bytes(f"{TOKEN}\r\n".encode())
    (tmp_path / "pem").write_text("line one\nline two\n\n")
    printed = finished("secret", "set", "HF_TOKEN", stdin=f"{TOKEN}\n")
    printed += finished("secret", "set", "HF_TOKEN", "--from-file", "token")
    printed += finished("secret", "set", "HF_TOKEN", "-f", "pem", "--json")
    assert [json_of(one)["value"] for one in live.requests] == [TOKEN, TOKEN, "line one\nline two\n"]
    assert TOKEN not in printed


def test_a_value_is_never_an_argument(live: AccessService) -> None:
    """Not even by mistake: a second word is wrong usage, and nothing is sent. Nor is an empty value or a bad name."""
    assert call("secret", "set", "HF_TOKEN", TOKEN).exit_code == 2
    assert call("secret", "set", "HF_TOKEN=" + TOKEN, stdin="x").exit_code == 2
    assert call("secret", "set", "HF_TOKEN", stdin="\n").exit_code == 2
    missing = call("secret", "set", "HF_TOKEN", "-f", "no-such-file")
    assert (missing.exit_code, "no-such-file" in missing.stderr) == (2, True)
    assert live.requests == []


def test_secrets_are_listed_and_deleted(live: AccessService) -> None:
    """Names and times; a deletion warns when unfinished jobs name it."""
    assert "HF_TOKEN" in finished("secret", "list")
    assert json.loads(finished("secret", "list", "--json"))[0]["used_by_jobs"] == 2
    gone = call("secret", "delete", "HF_TOKEN")
    assert (gone.exit_code, gone.stdout) == (0, "HF_TOKEN   deleted\n")
    assert "2 unfinished jobs name it" in gone.stderr


def test_a_key_is_created_and_printed_alone_when_piped(live: AccessService) -> None:
    """`KEY=$(allpass key create ci)` works; scopes and expiry reach the request."""
    before = datetime.now(UTC)
    assert finished("key", "create", "ci", "-s", "submit", "--expires", "90d") == "ak_1234_secret\n"
    sent = json_of(live.requests[-1])
    assert (sent["name"], sent["scopes"]) == ("ci", ["submit"])
    expires_at = datetime.fromisoformat(sent["expires_at"])
    assert timedelta(days=90) <= expires_at - before < timedelta(days=90, minutes=5)
    assert json.loads(finished("key", "create", "ci", "--json"))["scopes"] == ["read", "submit"]
    assert call("key", "create", "ci", "-s", "root").exit_code == 2
    assert call("key", "create", "ci", "--expires", "yesterday").exit_code == 2


def test_keys_are_listed_and_revoked(live: AccessService) -> None:
    """With their state; the id is printed, never a key."""
    table = finished("key", "list")
    assert "ak_1234" in table
    assert "revoked" in table
    assert "usable" in table
    assert finished("key", "revoke", "key_1") == "key_1   revoked\n"
    assert call("key", "revoke", "key_9").exit_code == 1


@pytest.mark.parametrize(
    ("group", "command"),
    [(group, command) for group, commands in GROUPS.items() for command in commands],
)
def test_help_of_each_command_opens_with_its_example(group: str, command: str) -> None:
    """As that of every other command."""
    lines = [line.strip() for line in finished(group, command, "--help").splitlines() if line.strip()]
    assert lines[1].startswith(f"Example: allpass {group} {command}")
