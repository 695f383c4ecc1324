"""What a keeper is told, through its file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.machines.order import MachineOrder

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
names = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1, max_size=10)


@given(st.lists(texts, max_size=5), st.dictionaries(names, texts, max_size=5), texts, st.booleans())
def test_an_order_arrives_as_it_was_given(
    tmp_path_factory: pytest.TempPathFactory,
    command: list[str],
    environment: dict[str, str],
    directory: str,
    die_with_cloud: bool,
) -> None:
    """Empty words, line ends and equals signs in values included; only the owner can read the file."""
    path = tmp_path_factory.mktemp("order") / "order"
    given_order = MachineOrder(
        command=command,
        environment=environment,
        directory=directory,
        ended_file="/e",
        die_with_cloud=die_with_cloud,
    )
    given_order.write(path)
    assert vars(MachineOrder.read(path)) == vars(given_order)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_order_that_no_process_can_be_started_with_is_refused(tmp_path: Path) -> None:
    """A zero byte would shift all that follows it: nothing is written."""
    order = MachineOrder(command=["a\0b"], environment={}, directory="/", ended_file="/e", die_with_cloud=True)
    with pytest.raises(ValueError, match="zero byte"):
        order.write(tmp_path / "order")
    assert not (tmp_path / "order").exists()
