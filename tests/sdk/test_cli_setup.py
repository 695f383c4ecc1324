"""The command on other people's machines: servers to choose from, completion, start-up, Windows and macOS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.config import find_connection, list_contexts, save_context
from tests.sdk.fake_service import KEY, FakeService, served

ALLPASS = Path(sys.executable).parent / "allpass"
# A Python without what only POSIX has, as a script that then runs the command line.
ELSEWHERE = """
import os, signal, sys

POSIX = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in POSIX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGCHLD", "SIGQUIT"):
    delattr(signal, name)
for name in ("fork", "getuid", "geteuid", "getgid", "getlogin", "setsid", "killpg", "getpgid", "uname", "chown"):
    delattr(os, name)
from allpass.cli.main import main
sys.argv = ["allpass", *sys.argv[1:]]
main()
"""


@pytest.fixture
def live(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """A served service that the environment points to, and a folder with a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text("print(1)")
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a server, and a configuration of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("ALLPASS_URL", "ALLPASS_API_KEY", "ALLPASS_CONTEXT", "ALLPASS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def test_contexts_are_listed_chosen_and_removed(home: Path) -> None:
    """The current one is marked; choosing another makes commands use it; keys are never printed."""
    save_context("prod", "https://prod.test", "ak_prod")
    save_context("staging", "https://staging.test/", "ak_staging")
    assert call("context", "list").stdout.split() == [
        "CONTEXT", "SERVER", "-", "prod", "https://prod.test", "*", "staging", "https://staging.test",
    ]  # fmt: skip
    assert call("context", "use", "prod").stdout == "prod (https://prod.test) is the current context\n"
    assert (find_connection().url, find_connection().api_key) == ("https://prod.test", "ak_prod")
    assert json.loads(call("context", "remove", "prod", "--json").stdout)["current"] is True
    printed = call("context", "list", "--json")
    assert json.loads(printed.stdout) == [{"name": "staging", "url": "https://staging.test", "current": False}]
    assert "ak_" not in printed.stdout
    assert [one.name for one in list_contexts()] == ["staging"]
    assert call("ps").stderr.startswith("error: no Allpass server is configured")


@pytest.mark.parametrize("verb", ["use", "remove"])
def test_a_context_that_is_not_there_is_told(home: Path, verb: str) -> None:
    """The error names the ones that are known and how to make one; nothing is changed."""
    save_context("prod", "https://prod.test", "ak_prod")
    result = call("context", verb, "prd")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no context 'prd' (known: prod)\n  try: allpass login URL --context prd" in result.stderr
    assert find_connection().url == "https://prod.test"


def test_login_keeps_several_servers(live: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """`login --context` adds one beside the others and makes it the current one."""
    url = live.base
    for name in ("ALLPASS_URL", "ALLPASS_API_KEY"):
        monkeypatch.delenv(name)
    for name in ("first", "second"):
        assert CliRunner().invoke(cli.app, ["login", url, "--context", name], input=f"{KEY}\n").exit_code == 0
    assert [(one.name, one.current) for one in list_contexts()] == [("first", False), ("second", True)]


@pytest.mark.parametrize(("shell", "part"), [("bash", "complete "), ("zsh", "#compdef allpass"), ("fish", "complete ")])
def test_completion_scripts_are_printed(shell: str, part: str) -> None:
    """The script is on stdout, for this command; a shell that is not known is told."""
    printed = call("completion", shell)
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert part in printed.stdout
    assert f"_ALLPASS_COMPLETE=complete_{shell}" in printed.stdout
    refused = call("completion", "tcsh")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: 'tcsh' is none of bash, zsh, fish")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [("allpass ch", ["checkpoints"]), ("allpass sweep be", ["best"]), ("allpass ps --sta", ["--status"])],
)
def test_bash_completes_with_the_script(line: str, expected: list[str], tmp_path: Path) -> None:
    """A real bash, with the printed script, completes commands, their commands and their options."""
    words = line.split()
    script = (
        f'eval "$({ALLPASS} completion bash)"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
        f'_allpass_completion {ALLPASS}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout.split() == expected


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"_ALLPASS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "allpass che"}, "checkpoints"),
        (
            {
                "_ALLPASS_COMPLETE": "complete_fish",
                "_TYPER_COMPLETE_ARGS": "allpass che",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
            "checkpoints",
        ),
    ],
)
def test_zsh_and_fish_are_answered(variables: dict[str, str], part: str) -> None:
    """What the scripts of zsh and fish ask for is answered with the command and what it does."""
    done = subprocess.run(
        [ALLPASS], capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **variables}
    )
    assert part in done.stdout
    assert "List complete, verified checkpoints" in done.stdout


@pytest.mark.parametrize("words", [["--help"], ["ps", "--help"], ["secret", "set", "--help"]])
def test_help_loads_nothing_that_is_slow(words: list[str], tmp_path: Path) -> None:
    """Help is immediate: no pydantic, no HTTP client, no tables, nothing of the server."""
    script = (
        "import sys\nfrom allpass.cli.main import main\nsys.argv = ['allpass', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    assert {"pydantic", "httpx", "rich", "asyncio", "sqlalchemy", "app.stack"} & set(done.stderr.split()) == set()


@pytest.mark.parametrize(
    "words", [["--help"], ["ps"], ["run", "train.py"], ["events", "-f", "JOB"], ["context", "list"]]
)
def test_the_client_works_without_posix(live: FakeService, words: list[str]) -> None:
    """Where there is no fcntl, pwd, termios, SIGHUP or fork, as on Windows, the client does all the same."""
    job = live.add_job(status="succeeded", name="there")
    live.add_event(job["id"], "submitted")
    environment = {name: value for name, value in os.environ.items() if name not in ("LOGNAME", "USER", "LNAME")}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *(job["id"] if one == "JOB" else one for one in words)],
        capture_output=True, text=True, check=False, timeout=60, env={**environment, "USERNAME": "ada"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    expected = {"--help": "Commands:", "ps": "there", "run": "job_", "events": "submitted", "context": ""}
    assert expected[words[0]] in done.stdout


def test_a_log_of_other_characters_is_no_error(live: FakeService) -> None:
    """An output that cannot write a character gets a question mark in its place, not a traceback."""
    job = live.add_job(status="succeeded")
    live.logs[job["id"]] = ["Verlust \u2193 3 \u00b5\n"]
    done = subprocess.run(
        [ALLPASS, "logs", job["id"]],
        capture_output=True, check=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.stdout == b"Verlust ? 3 ?\n"
