"""Secrets stay on the machine: whatever is printed, and however it is cut into pieces."""

from __future__ import annotations

import base64
import itertools
import json
import os
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.living import files_with, paths_below
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from workers.agent.logs import Log
from workers.agent.redaction import Redactor, forms_of
from workers.agent.spool import Spool

Start = Callable[..., AgentProcess]
TOKEN = "hf_A1b2C3d4/E5+f6&g7"
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----"

# Few letters, so that values overlap, contain each other, and their beginnings are everywhere.
values = st.lists(st.text("ab\n", min_size=6, max_size=12), min_size=1, max_size=4)
noise = st.text("abc\n", max_size=20)


def streamed(redactor: Redactor, pieces: list[bytes]) -> bytes:
    stream = redactor.stream()
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.finish()])


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(one, len(data)) for one in at), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@st.composite
def output(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """Secrets, and text with some of them in it, in any of their forms."""
    secrets = draw(values)
    forms = sorted({form for secret in secrets for form in forms_of(secret)})
    parts = draw(st.lists(st.one_of(noise.map(str.encode), st.sampled_from(forms)), max_size=12))
    return secrets, b"".join(parts)


@given(output(), st.lists(st.integers(0, 400), max_size=8))
def test_no_split_ever_lets_a_secret_through(said: tuple[list[str], bytes], at: list[int]) -> None:
    """No form of any secret is left in what comes out, wherever the pieces are cut."""
    secrets, data = said
    passed = streamed(Redactor(secrets), cut(data, at))
    assert not [form for secret in secrets for form in forms_of(secret) if form in passed]


@given(output(), st.lists(st.integers(0, 400), max_size=8))
def test_the_result_does_not_depend_on_the_split(said: tuple[list[str], bytes], at: list[int]) -> None:
    """Cut or whole, the same text comes out."""
    secrets, data = said
    assert streamed(Redactor(secrets), cut(data, at)) == streamed(Redactor(secrets), [data])


@given(values, st.text("xyz *\n", max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_text_without_secrets_passes_unchanged(secrets: list[str], text: str, at: list[int]) -> None:
    """Nothing is masked that is not (the end of) a secret."""
    assert streamed(Redactor(secrets), cut(text.encode(), at)) == text.encode()


@given(output())
def test_every_byte_outside_of_secrets_is_kept(said: tuple[list[str], bytes]) -> None:
    """Compared with a slow and plain way: mark every byte of every form, then write each marked stretch as ***."""
    secrets, data = said
    marked = [False] * len(data)
    forms = {form for secret in secrets for form in forms_of(secret)}
    for start in range(len(data)):
        for form in forms:
            if data.startswith(form, start):
                marked[start : start + len(form)] = [True] * len(form)
    for start in range(len(data) - 5):  # cut off in the middle of a secret: a long beginning is masked as well
        if any(len(form) > len(data) - start and form.startswith(data[start:]) for form in forms):
            marked[start:] = [True] * (len(data) - start)
    expected = b""
    for index, hidden in enumerate(marked):
        if not hidden:
            expected += data[index : index + 1]
        elif index == 0 or not marked[index - 1]:
            expected += b"***"
    assert streamed(Redactor(secrets), [data]) == expected


@pytest.mark.parametrize(
    "written",
    [
        TOKEN,
        base64.b64encode(TOKEN.encode()).decode(),
        base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("="),
        urllib.parse.quote(TOKEN),
        urllib.parse.quote(TOKEN, safe=""),
        urllib.parse.quote_plus(TOKEN),
        urllib.parse.quote(TOKEN, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%26", "%26"),
        json.dumps(TOKEN)[1:-1],
        TOKEN.encode().hex(),
    ],
)
def test_common_encodings_are_masked(written: str) -> None:
    """The value, as base64, in a URL, in JSON, in hex."""
    assert Redactor([TOKEN]).text(f"Authorization: Bearer {written}; next") == "Authorization: Bearer ***; next"


@given(st.text(min_size=0, max_size=9), st.text(min_size=0, max_size=9))
def test_base64_of_something_longer_hides_the_secret_in_it(before: str, after: str) -> None:
    """`user:token` in base64 is how many programs log in: what encodes the token itself is gone."""
    encoded = base64.b64encode(f"{before}{TOKEN}{after}".encode()).decode()
    shown = Redactor([TOKEN]).text(encoded)
    assert "***" in shown
    assert len(shown) <= len(encoded) - len(TOKEN) + 3


@pytest.mark.parametrize(
    "written",
    [PEM, PEM.replace("\n", "\r\n"), repr(PEM), json.dumps({"key": PEM}), "MIIEvQIBADANBgkq", "hkiG9w0BAQEFAASC"],
)
def test_a_value_of_several_lines_is_masked_whole_and_by_line(written: str) -> None:
    """As it is, escaped, and each of its long lines alone."""
    shown = Redactor([PEM]).text(written)
    assert "MIIEvQ" not in shown
    assert "hkiG9w" not in shown


def test_no_secrets_cost_nothing_and_change_nothing() -> None:
    """Without secrets every byte passes at once."""
    stream = Redactor([]).stream()
    assert (stream.feed(b"\xff\x00half"), stream.finish()) == (b"\xff\x00half", b"")


def test_output_that_ends_within_a_secret_is_masked() -> None:
    """A process that is killed while it prints has not printed all but one character of a token either."""
    assert streamed(Redactor([TOKEN]), [b"x ", TOKEN[:-1].encode()]) == b"x ***"
    assert streamed(Redactor([TOKEN]), [b"x ", TOKEN[:3].encode()]) == b"x hf_"


def test_a_large_secret_is_found_in_large_output() -> None:
    """64 KiB of value in output read by 64 KiB: masked, and in reasonable time."""
    value = base64.b85encode(os.urandom(51_000)).decode()
    data = b"line\n" * 50_000 + value.encode() + b"\nend\n"
    pieces = [data[start : start + 65_536] for start in range(0, len(data), 65_536)]
    assert streamed(Redactor([value]), pieces) == b"line\n" * 50_000 + b"***\nend\n"


@given(st.lists(st.integers(0, 200), max_size=8), st.sampled_from(["utf-8", "utf-16-le", "utf-16-be"]))
def test_a_log_never_holds_a_secret(tmp_path_factory: pytest.TempPathFactory, at: list[int], encoding: str) -> None:
    """Neither the chunks, nor our own remarks, nor the last lines; also when NULs stand between its characters."""
    spool = Spool(tmp_path_factory.mktemp("spool"))
    log = Log(spool, Redactor([TOKEN]))
    for piece in cut(f"before {TOKEN} after\n".encode(encoding), at):
        log.feed(piece)
        log.say(f"about {TOKEN}")
    log.finish()
    text = b"".join(chunk.file.read_bytes() for chunk in spool.head(1000)).decode()
    assert TOKEN not in text
    assert "before *** after" in text
    assert "allpass: about ***\n" in text
    assert log.last_lines() == "before *** after"


LEAKS = """
import base64, os, sys, time
token = os.environ["HF_TOKEN"]
print("token:", token)
print("basic:", base64.b64encode(f"user:{token}".encode()).decode())
for character in "slowly " + token + "\\n":
    sys.stdout.write(character)
    sys.stdout.flush()
    time.sleep(0.001)
print("length", len(token), len(os.environ["WANDB_KEY"]))
raise RuntimeError(f"401 for {token}")
"""


def test_user_code_has_its_secrets_and_nobody_else_sees_them(plane: Plane, start_agent: Start) -> None:
    """In the environment by name; in no log, no last line, and no file that the agent writes."""
    run = desired(
        plane,
        LEAKS,
        template={"secrets": ["HF_TOKEN", "WANDB_KEY"]},
        secrets={"HF_TOKEN": TOKEN, "WANDB_KEY": "wandb-0123456789"},
    )
    plane.want(run)
    agent = start_agent()
    ended = plane.wait_exit(run.run_id)
    assert ended.exit_code == 1
    log = plane.wait_log(run.run_id, "RuntimeError: 401 for ***")
    assert "token: ***\n" in log
    assert "slowly ***\n" in log
    assert f"length {len(TOKEN)} 16" in log
    assert ended.last_lines.endswith("RuntimeError: 401 for ***")
    said = log + "".join(sync.model_dump_json() for sync in plane.syncs)
    assert TOKEN not in said
    assert base64.b64encode(TOKEN.encode())[:12].decode() not in said
    assert any(path.is_file() for path in paths_below(agent.root))
    assert files_with(TOKEN, agent.root) + files_with("wandb-0123456789", agent.root) == []


def test_a_run_whose_secret_is_gone_never_starts(plane: Plane, start_agent: Start) -> None:
    """The job named it, the server cannot give it any more: the user reads which one, and what to do."""
    run = desired(plane, "print('started')", template={"secrets": ["HF_TOKEN"]})
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert "needs the secret HF_TOKEN" in (ended.environment_error or "")
    plane.wait_log(run.run_id, "allpass secret set HF_TOKEN")
    assert "started" not in plane.log(run.run_id)
