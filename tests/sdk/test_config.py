"""Where the server is looked for, in which order, and how the answer is kept."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from allpass import config
from allpass.config import checked_url, find_connection, remember_stack, remove_context, save_context
from allpass.errors import ConfigurationError

URL = "http://127.0.0.1:7700"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def local_stack(folder: Path, url: str = URL) -> Path:
    (folder / ".allpass").mkdir(parents=True)
    (folder / ".allpass/client.json").write_text(json.dumps({"url": url, "api_key": "local"}))
    return folder


def test_each_place_comes_before_the_next(tmp_path: Path, environ: dict[str, str]) -> None:
    """Environment, then a named context, then a stack of this folder or above, then the login."""
    here = tmp_path / "project/deep"
    here.mkdir(parents=True)
    save_context("default", "https://login.test/", "k1", environ)
    assert find_connection(environ, here).url == "https://login.test"
    local_stack(tmp_path / "project")
    assert find_connection(environ, here).api_key == "local"
    save_context("other", "https://other.test", "k2", environ)
    assert find_connection({**environ, "ALLPASS_CONTEXT": "default"}, here).url == "https://login.test"
    both = {**environ, "ALLPASS_URL": "https://env.test", "ALLPASS_API_KEY": "k3"}
    assert (find_connection(both, here).url, find_connection(both, here).api_key) == ("https://env.test", "k3")


def test_the_data_directory_can_be_named(tmp_path: Path, environ: dict[str, str]) -> None:
    """ALLPASS_DATA_DIR says where the local stack keeps its client.json."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/client.json").write_text(json.dumps({"url": URL, "api_key": "there"}))
    assert find_connection({**environ, "ALLPASS_DATA_DIR": str(tmp_path / "data")}, tmp_path).api_key == "there"


def test_nothing_configured_says_what_to_run(tmp_path: Path, environ: dict[str, str]) -> None:
    """The error names the command that starts a server, and the one that remembers one."""
    with pytest.raises(ConfigurationError, match="no Allpass server is configured") as failed:
        find_connection(environ, tmp_path)
    assert "allpass up" in str(failed.value.hint)
    assert "allpass login" in str(failed.value.hint)


def test_a_file_of_another_user_is_left_alone(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client.json that somebody else put into a shared folder cannot redirect our code; the error says so."""
    local_stack(tmp_path)
    monkeypatch.setattr(config.os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        find_connection(environ, tmp_path)


def test_the_key_is_kept_private(environ: dict[str, str], tmp_path: Path) -> None:
    """The file is readable by its owner only, also when it is written again, and reprs do not show the key."""
    for key in ("first", "second"):
        path = save_context("default", URL, key, environ)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["contexts.json"]
    assert "second" not in repr(find_connection(environ, tmp_path))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"ALLPASS_URL": URL}, "ALLPASS_API_KEY is not"),
        ({"ALLPASS_URL": "localhost:7700", "ALLPASS_API_KEY": "k"}, "ALLPASS_URL: 'localhost:7700' is not the address"),
        ({"ALLPASS_CONTEXT": "gone"}, r"no context 'gone' \(known: none\)"),
    ],
)
def test_half_a_configuration_is_an_error(
    tmp_path: Path, environ: dict[str, str], extra: dict[str, str], words: str
) -> None:
    """What was set but cannot work is told; nothing else is tried in its place."""
    with pytest.raises(ConfigurationError, match=words):
        find_connection({**environ, **extra}, tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": "x", "api_key": "k"}', '{"url": "http://a"}', "\0"])
def test_broken_files_are_told_by_name(tmp_path: Path, environ: dict[str, str], content: str) -> None:
    """A damaged client.json is named in the error."""
    (local_stack(tmp_path) / ".allpass/client.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"client\.json"):
        find_connection(environ, tmp_path)


@pytest.mark.parametrize("url", ["", "x", "ftp://a", "http://", "http://a:99999", "http://a:b", "//a", "http://[::1"])
def test_only_addresses_are_addresses(url: str) -> None:
    """Anything but http(s)://host[:port] is refused by name."""
    with pytest.raises(ConfigurationError, match="is not the address of a server"):
        checked_url(url, "url")


def test_a_stack_here_never_takes_the_place_of_a_login(environ: dict[str, str]) -> None:
    """Its context is the current one where there is none, and again after a restart; where somebody has logged in to a
    server, that stays the current one, and a context that is another server is left alone."""
    assert remember_stack("local", "http://127.0.0.1:7700", "k1", environ)
    assert remember_stack("local", "http://127.0.0.1:7701", "k2", environ)
    assert find_connection(environ, Path("/")).url == "http://127.0.0.1:7701"
    save_context("work", "https://allpass.example.com", "k3", environ)
    assert not remember_stack("local", "http://127.0.0.1:7702", "k4", environ)
    assert find_connection(environ, Path("/")).api_key == "k3"
    with pytest.raises(ConfigurationError, match="another server"):
        remember_stack("work", "http://127.0.0.1:7702", "k4", environ)
    remove_context("work", environ)
    assert remember_stack("local", "http://127.0.0.1:7703", "k5", environ)


def test_where_files_have_no_owner_only_our_home_is_trusted(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: a stack in a shared folder is left alone, and that is told; one below our home is found."""
    monkeypatch.delattr("os.getuid")
    folder = local_stack(tmp_path / "shared")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        find_connection(environ, folder)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert find_connection(environ, folder).url == URL
