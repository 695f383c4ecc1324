"""What a training leaves is put into a repository of the hub, with the hub's own library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allpass.errors import InvalidInput
from allpass.recipe.packing import pack
from allpass.wire.template import Template
from tests.training.taking_hub import LARGE_BYTES, TakingHub, taking

pytestmark = pytest.mark.training
ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(8)]
PUSHES = """
import sys
from pathlib import Path
from workers.trainer import pushing
try:
    pushing.check(sys.argv[1])
    pushing.push(Path(sys.argv[2]), sys.argv[1], sleep=lambda seconds: print("waits", seconds))
except ValueError as error:
    sys.exit(f"error: {error}")
"""


@pytest.fixture
def hub() -> Iterator[TakingHub]:
    with taking({"hf_good": {"team/tuned"}}) as found:
        yield found


@pytest.fixture
def result(tmp_path: Path) -> Path:
    (tmp_path / "merged").mkdir()
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"w" * (2 * LARGE_BYTES))
    (tmp_path / "merged" / "config.json").write_text('{"a": 1}')
    return tmp_path


def pushed(hub: TakingHub, result: Path, *, token: str | None, repository: str = "team/tuned") -> tuple[int, str]:
    """In a process of its own: the library reads its environment when it is imported."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "ALLPASS"))}
    environ = {**ours, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(result.parent / "hf")}
    if token is not None:
        environ["HF_TOKEN"] = token
    words = [sys.executable, "-c", PUSHES, repository, str(result)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_all_files_are_in_a_private_repository(hub: TakingHub, result: Path) -> None:
    """Large ones too, under the names that `download` gives them; a second time changes nothing."""
    for _ in range(2):
        code, said = pushed(hub, result, token="hf_good")
        assert (code, "training: pushed to team/tuned" in said) == (0, True), said
    assert hub.private == {"team/tuned": True}
    assert hub.files["team/tuned"] == {
        path.relative_to(result).as_posix(): path.read_bytes() for path in result.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("token", "repository", "words"),
    [
        (None, "team/tuned", "push_to: the hub "),
        ("hf_bad", "team/tuned", "push_to: the hub takes nothing for 'team/tuned'"),
        ("hf_good", "others/tuned", "push_to: the hub takes nothing for 'others/tuned'"),
    ],
)
def test_a_hub_that_would_refuse_is_told_of_before_anything_is_trained(
    hub: TakingHub, result: Path, token: str | None, repository: str, words: str
) -> None:
    """No step is paid for whose result could not be put where it is wanted. The token is in no message."""
    code, said = pushed(hub, result, token=token, repository=repository)
    assert (code, hub.commits) == (1, 0)
    assert words in said
    assert "hf_" not in said


def test_a_hub_that_fails_for_a_while_is_asked_again(hub: TakingHub, result: Path) -> None:
    hub.commits_fail = [500, 503]
    code, said = pushed(hub, result, token="hf_good")
    assert (code, hub.commits) == (0, 1), said


def test_files_that_are_not_taken_are_kept_and_the_way_to_them_is_told(hub: TakingHub, result: Path) -> None:
    hub.commits_fail = [403]
    code, said = pushed(hub, result, token="hf_good")
    assert code == 1
    assert "push_to: 'team/tuned' did not take the files" in said
    assert "allpass download, then hf upload team/tuned FOLDER" in said
    assert "waits" not in said


def test_without_a_token_nothing_is_sent() -> None:
    """The client refuses what could only fail on a machine that is paid for."""
    with pytest.raises(InvalidInput, match="no secret HF_TOKEN is named") as refused:
        pack({"model": "m", "push_to": "team/tuned"}, ROWS)
    assert "--secret HF_TOKEN" in str(refused.value.hint)
    packed = pack({"model": "m", "push_to": "team/tuned"}, ROWS, template=Template(secrets=["HF_TOKEN"]))
    assert packed.template.sharing is False


@pytest.mark.parametrize("name", ["tuned", "team/tuned/x", "team/../x", "team/", "team/töned", "http://a/b", " "])
def test_what_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="push_to: "):
        pack({"model": "m", "push_to": name}, ROWS, template=Template(secrets=["HF_TOKEN"]))
