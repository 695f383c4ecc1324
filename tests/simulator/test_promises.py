"""What the guide promises of each policy is what its command prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from allpass.cli import main as cli
from app.cli import figures
from tests.documents import blocks_of

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "simulate.md"


@pytest.fixture(scope="module")
def policies() -> dict[str, dict[str, Any]]:
    """By the guide's own command."""
    (command,) = [one.text for one in blocks_of(GUIDE, "sh") if "--policy cheapest-first" in one.text]
    result = CliRunner().invoke(cli.app, [*shlex.split(command)[1:], "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, dict[str, Any]] = json.loads(result.stdout)["policies"]
    return found


def test_the_table_is_what_its_command_prints(policies: dict[str, dict[str, Any]]) -> None:
    """Dollars, waiting and late jobs of each policy, to the digit."""
    rows = re.findall(r"^\| `([a-z-]+)` \| (\$[\d.,]+) \| ([\w. ]+) \| ([\d.]+%) \|", GUIDE.read_text(), re.MULTILINE)
    shown = [
        (
            name,
            figures.money(one["cost_usd"]),
            figures.time(one["mean_wait_s"]),
            figures.share(one["deadline_miss_share"]),
        )
        for name, one in policies.items()
    ]
    assert rows == shown


def test_what_the_default_buys(policies: dict[str, dict[str, Any]]) -> None:
    """Of all simple policies only `cheapest-first` costs less, and it lets jobs wait and be late."""
    ours = policies["allpass"]
    cheaper = [name for name, one in policies.items() if one["cost_usd"] < ours["cost_usd"]]
    assert cheaper == ["cheapest-first"]
    simple = policies["cheapest-first"]
    assert simple["cost_usd"] > 0.9 * ours["cost_usd"]
    assert simple["mean_wait_s"] > 5 * ours["mean_wait_s"]
    assert simple["deadline_miss_share"] > 4 * ours["deadline_miss_share"]
