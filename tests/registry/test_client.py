"""What a registry is asked, and what is made of its answers."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from app.core.images.facts import ImageFacts
from app.core.images.logins import RegistryLogin
from app.core.images.reference import parse_image
from app.errors import AllpassError, Forbidden, NotFound, TooManyRequests, Unavailable
from app.registry.client import Registry
from tests.registry.conftest import PYTHON
from tests.registry.emulated import DOCKER_LIST, DOCKER_MANIFEST, OCI_MANIFEST, EmulatedRegistry

ROBOT = RegistryLogin("robot", "hush")


def look(
    registry: EmulatedRegistry, name: str = "team/node:1", login: RegistryLogin | None = None, **options: Any
) -> ImageFacts:
    waited: list[float] = options.pop("waited", [])
    image = parse_image(f"{registry.host}/{name}")
    with Registry(image.registry, login, sleep_s=waited.append, **options) as asked:
        return asked.look(image)


def test_an_index_is_read_for_the_machines_that_are_rented(registry: EmulatedRegistry) -> None:
    """Its amd64 image, of which the manifest tells the size and the configuration the rest; no layer is fetched."""
    facts = look(registry)
    assert facts.platforms == ("linux/arm64", "linux/amd64")
    assert (facts.platform, facts.download_bytes) == ("linux/amd64", 3_500_000_000)
    assert facts.environment["PYTHON_VERSION"] == "3.11.9"
    assert facts.environment["ODD"] == ""
    assert facts.runs_as_root
    asked = [path for path, _ in registry.requests if path.startswith("/v2/")]
    assert len(asked) == 4, "one refused for want of a token, index, manifest, configuration"


def test_one_manifest_without_an_index_is_an_image_too(registry: EmulatedRegistry) -> None:
    """Its configuration says the platform."""
    registry.tag("team/node", "arm", registry.put("team/node", {**PYTHON, "architecture": "arm64"}))
    assert look(registry, "team/node:arm").platforms == ("linux/arm64",)


def test_docker_s_own_formats_are_read_too(registry: EmulatedRegistry) -> None:
    """Older pushes have them."""
    digest = registry.put("old/node", PYTHON)
    manifest = json.loads(registry.content[f"old/node/manifests/{digest}"][1])
    digest = registry.put_manifest("old/node", {**manifest, "mediaType": DOCKER_MANIFEST})
    registry.put_index("old/node", "1", {"linux/amd64": digest}, kind=DOCKER_LIST)
    assert look(registry, "old/node:1").download_bytes == 1_000_000


def test_an_image_is_had_by_its_digest(registry: EmulatedRegistry) -> None:
    """And its own digest is told, so that it can be pinned."""
    digest = look(registry).digest
    assert look(registry, f"team/node@{digest}").digest == digest


@pytest.mark.parametrize("auth", ["bearer", "basic"])
def test_a_login_opens_what_is_private(registry: EmulatedRegistry, auth: str) -> None:
    """By a token of the registry's own service, or by itself."""
    registry.auth, registry.private = auth, frozenset({"team/node"})
    assert look(registry, login=ROBOT).download_bytes == 3_500_000_000


@pytest.mark.parametrize("auth", ["bearer", "basic"])
def test_without_a_login_the_setting_is_named(registry: EmulatedRegistry, auth: str) -> None:
    """Nobody can tell private from missing: both are said."""
    registry.auth, registry.private = auth, frozenset({"team/node"})
    with pytest.raises(Forbidden, match=r"team/node:1 is private or does not exist.*ALLPASS_REGISTRY_LOGINS"):
        look(registry)


def test_a_wrong_login_is_told_without_its_password(registry: EmulatedRegistry) -> None:
    """Which user it was is enough."""
    with pytest.raises(Forbidden, match=r"does not give .* to user 'robot'") as raised:
        look(registry, login=RegistryLogin("robot", "wrong-password"))
    assert "wrong-password" not in str(raised.value)


def test_a_tag_that_is_not_there_is_said(registry: EmulatedRegistry) -> None:
    """With the whole name."""
    with pytest.raises(NotFound, match=f"{registry.host} has no image {registry.host}/team/node:2"):
        look(registry, "team/node:2")


def test_too_fast_is_waited_for_and_in_the_end_told(registry: EmulatedRegistry) -> None:
    """As long as it says itself, if that is not long; a limit that lasts is an error with a way out."""
    waited: list[float] = []
    registry.answers = [(429, {"Retry-After": "2"}, b"")] * 2
    assert look(registry, waited=waited).download_bytes == 3_500_000_000
    assert waited == [2.0, 2.0]
    registry.answers = [(429, {"Retry-After": "3600"}, b"")]
    with pytest.raises(TooManyRequests, match="ALLPASS_REGISTRY_LOGINS") as raised:
        look(registry, waited=waited)
    assert raised.value.retry_after_ms == 3_600_000
    assert len(waited) == 2
    registry.answers = [(429, {"Retry-After": "soon"}, b"")] * 9
    with pytest.raises(TooManyRequests):
        look(registry, waited=waited)
    assert len(waited) == 5, "and not for ever"


@pytest.mark.parametrize(
    "realm", ["http://tokens.example/token", "ftp://tokens.example", "file:///etc/passwd", "", "http://[", "//x"]
)
def test_a_login_goes_to_no_token_service_in_the_open(registry: EmulatedRegistry, realm: str) -> None:
    """A registry that names an address without encryption gets neither password nor another question."""
    registry.realm = realm or " "
    with pytest.raises(Forbidden):
        look(registry, login=ROBOT)
    assert all(given == "" for _, given in registry.requests)


def test_a_token_is_not_carried_to_where_blobs_lie(registry: EmulatedRegistry) -> None:
    """Blobs are often given out by a storage service, by redirect: it is not to see the token."""
    elsewhere = EmulatedRegistry(auth="none", content=dict(registry.content))
    server = elsewhere.start()
    answer = registry.answer

    def redirecting(path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        told = answer(path, headers)
        return (307, {"Location": f"http://{elsewhere.host}{path}"}, b"") if "/blobs/" in path else told

    registry.answer = redirecting  # type: ignore[method-assign]
    facts = look(registry)
    server.shutdown()
    server.server_close()
    assert facts.environment["CUDA_VERSION"] == "13.0.2"
    assert [given for path, given in registry.requests if "/blobs/" in path] == ["Bearer token-team/node"]
    assert [given for _, given in elsewhere.requests] == [""]


@pytest.mark.parametrize(
    "body",
    [b"<html>welcome</html>", b"[]", b"", b'{"mediaType": "x"}', b'{"manifests": []}', b'{"config": {"digest": 7}}'],
)
def test_what_is_no_registry_is_told_as_such(registry: EmulatedRegistry, body: bytes) -> None:
    """A portal, a proxy, something old: an error of ours and no traceback."""
    registry.auth = "none"
    registry.answers = [(200, {}, body)]
    with pytest.raises(AllpassError):
        look(registry)


@pytest.mark.parametrize("status", [301, 500, 502])
def test_a_registry_that_fails_is_told(registry: EmulatedRegistry, status: int) -> None:
    """Its status is in the message."""
    registry.answers = [(status, {}, b"")]
    with pytest.raises(Unavailable, match=str(status)):
        look(registry)


def test_a_registry_that_is_not_there_is_told() -> None:
    """By its host."""
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 cannot be asked"), Registry("127.0.0.1:9", None) as asked:
        asked.look(parse_image("127.0.0.1:9/team/node:1"))


def test_an_answer_without_end_is_left(registry: EmulatedRegistry) -> None:
    """Nothing of ours is filled by somebody else's registry."""
    registry.auth = "none"
    registry.answers = [(200, {}, b" " * (9 * 1024 * 1024))]
    with pytest.raises(Unavailable, match="more than 8 MiB"):
        look(registry)


def test_content_that_is_not_what_its_name_says_is_refused(registry: EmulatedRegistry) -> None:
    """A proxy that changes what a digest stands for is found out."""
    registry.auth = "none"
    digest = look(registry).digest
    registry.content[f"team/node/manifests/{digest}"] = (OCI_MANIFEST, b"{}")
    with pytest.raises(Unavailable, match="something between us"):
        look(registry, f"team/node@{digest}")


def test_odd_values_do_no_harm(registry: EmulatedRegistry) -> None:
    """Configurations come from anybody."""
    odd = {"config": {"Env": "x", "Entrypoint": "sh", "User": 7, "Cmd": [1]}, "history": [1, {"created_by": None}]}
    registry.tag("odd/node", "1", registry.put("odd/node", odd, layers=(-5,)))
    facts = look(registry, "odd/node:1")
    assert (facts.environment, facts.entrypoint, facts.command, facts.user) == ({}, (), (), "7")
    assert facts.download_bytes == 0


def test_the_login_is_sent_to_the_token_service_alone(registry: EmulatedRegistry) -> None:
    """The registry itself gets tokens."""
    look(registry, login=ROBOT)
    basic = "Basic " + b64encode(b"robot:hush").decode()
    assert {path.startswith("/token") for path, given in registry.requests if given == basic} == {True}
