"""Links that a script tells of are shown with its job, to people who did not write the script."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.training.links import LONGEST_URL, is_link
from allpass.wire.agent import RunReport
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from workers.agent.facts import MOST_LINKS, link_of

Start = Callable[..., AgentProcess]
HOSTILE = [
    "javascript:alert(1)",
    "https://user:password@example.org/",
    "https://example.org@evil.example/",
    "https://example.org/\x1b[2J",
    "https://example.org/\n",
    'https://example.org/"><script>',
    "https://example.org/a b",
    "https://example.org/\u202egnp",
    "ftp://example.org/",
    "https://",
    "https://example.org/" + "a" * LONGEST_URL,
]


def test_the_newest_link_of_each_name_is_told(plane: Plane, start_agent: Start) -> None:
    """What could not be shown to others, or has a secret in it, is not; nor are too many."""
    lines = [
        {"link": {"name": "wandb", "url": url}} for url in ("https://wandb.ai/a/runs/1", "https://wandb.ai/a/runs/2")
    ]
    lines += [{"link": {"name": "bad", "url": url}} for url in HOSTILE]
    lines += [{"link": link} for link in ("text", {"name": 1}, {"name": "A b", "url": "https://a/"}, {"name": "a"})]
    lines += [{"link": {"name": "key", "url": "https://example.org/?key=hf_A1b2C3d4"}}]
    lines += [{"link": {"name": f"n{index}", "url": f"http://[::1]:80{index}/#/a"}} for index in range(MOST_LINKS)]
    script = f"import os\nfile = open(os.environ['ALLPASS_METRICS_FILE'], 'a')\nlines = {json.dumps(lines)}\n"
    script += "import json, time\n"
    script += "for line in lines:\n    file.write(json.dumps({'step': 0, 'training': line}) + '\\n')\n"
    script += "file.write('{\"step\": 1}\\n')\nfile.close()\ntime.sleep(600)\n"
    run = desired(plane, script, secrets={"HF_TOKEN": "hf_A1b2C3d4"})
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 1)
    expected = {f"n{index}": f"http://[::1]:80{index}/#/a" for index in range(MOST_LINKS - 1)}
    assert plane.told(run.run_id).links == {"wandb": "https://wandb.ai/a/runs/2", **expected}


@pytest.mark.parametrize("url", HOSTILE)
def test_script_agent_and_server_refuse_the_same(url: str) -> None:
    report: dict[str, Any] = {"run_id": "run_1", "job_id": "job_1", "epoch": 1, "phase": "running"}
    assert not is_link("wandb", url)
    assert link_of({"link": {"name": "wandb", "url": url}}) == {}
    assert RunReport(**report, links={"wandb": url}).links is None


words = st.text(max_size=40) | st.from_regex(r"https?://[!-~]{0,30}", fullmatch=True)


@settings(max_examples=200)
@given(words, words)
def test_what_a_script_may_tell_the_agent_tells_and_the_server_takes(name: str, url: str) -> None:
    report: dict[str, Any] = {"run_id": "run_1", "job_id": "job_1", "epoch": 1, "phase": "running"}
    told = link_of({"link": {"name": name, "url": url}})
    assert bool(told) == is_link(name, url)
    assert RunReport(**report, links=told).links == told
    assert is_link(name, url) == (RunReport(**report, links={name: url}).links is not None)
