"""The command line that a supervisor uses is the one that the cloud reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.local.cloud import parse_options
from providers.local.start import cloud_command

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)


@given(
    port=st.integers(0, 65_535),
    speed=st.floats(0, 100),
    seed=st.integers(0, 2**63),
    agent_command=TEXT.filter(lambda text: not text.startswith("-")),
    die=st.booleans(),
    survive=st.booleans(),
)
def test_the_command_says_what_was_asked_for(
    port: int, speed: float, seed: int, agent_command: str, die: bool, survive: bool
) -> None:
    """Every option given to `cloud_command` arrives in the cloud unchanged."""
    command = cloud_command(
        Path("/data/here"),
        host="::1",
        port=port,
        speed=speed,
        seed=seed,
        agent_command=agent_command,
        die_with_parent=die,
        machines_die_with_cloud=not survive,
    )
    assert command[1:4] == ["-P", "-m", "providers.local.cloud"]
    options = parse_options(command[4:])
    assert (options.data_dir, options.host, options.port) == (Path("/data/here"), "::1", port)
    assert (options.speed, options.seed, options.agent_command) == (speed, seed, agent_command)
    assert options.parent_pid == (os.getpid() if die else None)
    assert options.machines_die_with_cloud == (not survive)


@pytest.mark.parametrize("speed", ["-1", "nan", "fast"])
def test_a_speed_that_makes_no_sense_ends_with_a_message(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option is refused before anything starts."""
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--data-dir", "d", "--speed", speed])
    assert "speed" in capsys.readouterr().err


def test_machines_die_with_the_cloud_unless_told_otherwise() -> None:
    """Started by hand without options, the cloud leaves no strays and stays when its terminal goes."""
    options = parse_options(["--data-dir", "d"])
    assert options.machines_die_with_cloud
    assert options.parent_pid is None
    assert parse_options(["--data-dir", "d", "--die-with-parent"]).parent_pid == os.getppid()
