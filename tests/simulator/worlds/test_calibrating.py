"""Measured figures in the place of a world's: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.node import RENTED_TIERS, Tier
from app.errors import InvalidInput
from app.simulator.options import Options
from app.simulator.worlds.calibrating import read_calibration
from app.simulator.worlds.known import FRIENDLY, HARSH, MEASURED

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "simulate.md"


def written(folder: Path, content: Any) -> str:
    path = folder / "measured.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def refused(folder: Path, content: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        Options().having("calibrate", written(folder, content))
    return caught.value.message


def test_figures_go_over_those_of_the_world(tmp_path: Path) -> None:
    """Of the tier and of the whole; all others stay."""
    content = {"about": {"by": "us"}, "save_s": 0.8, "marketplace": {"startup_mean_s": 58, "mean_life_s": None}}
    read = read_calibration(written(tmp_path, content))
    assert read.name == "measured.json"
    for world in (FRIENDLY, MEASURED, HARSH):
        found = dict(read.over(world).figures())
        changed = {name for name, value in world.figures() if found[name] != value}
        assert changed <= {"save_s", "marketplace.startup_mean_s", "marketplace.mean_life_s"}
        assert (found["save_s"], found["marketplace.startup_mean_s"]) == (0.8, 58.0)
        assert found["marketplace.mean_life_s"] is None


def test_every_figure_of_a_world_may_be_given(tmp_path: Path) -> None:
    """Those of one world over another make it that world, but for its name; nested and with dots."""
    figures = dict(HARSH.figures())
    nested: dict[str, Any] = {name: value for name, value in figures.items() if "." not in name}
    for tier in RENTED_TIERS:
        own = {name.partition(".")[2]: one for name, one in figures.items() if name.startswith(tier.value)}
        nested[tier.value] = own
    for content in (figures, nested):
        found = read_calibration(written(tmp_path, content)).over(FRIENDLY)
        assert dict(found.figures()) == figures


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    options = Options().having("calibrate", written(tmp_path, {}))
    assert options.world == FRIENDLY
    assert options.told() == Options().told()


def test_a_move_is_measured_too_and_the_last_word_counts(tmp_path: Path) -> None:
    path = written(tmp_path, {"move_s": 3.0})
    assert Options().having("calibrate", path).config().moves.save_ms == 1_500
    assert Options().having("calibrate", path).having("move-seconds", "10").config().moves.save_ms == 5_000
    assert Options().having("calibrate", path).having("world", "measured").config().moves.save_ms == 1_500


def test_what_was_measured_is_played_and_told(tmp_path: Path) -> None:
    options = Options().having("world", "harsh").having("calibrate", written(tmp_path, {"marketplace": {"usd": 0.5}}))
    told = options.told()
    assert (told["world"], told["calibrate"]) == ("harsh", "measured.json")
    assert options.flat_usd()[Tier.MARKETPLACE] == 0.5
    assert options.flat_usd()[Tier.CONVENTIONAL] == HARSH.conventional.usd


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"savings_s": 1}, "savings_s: there is no such figure; the nearest is save_s"),
        (
            {"marketplace": {"startup": 1}},
            "marketplace.startup: there is no such figure; the nearest is marketplace.st",
        ),
        ({"vast": {"usd": 1}}, "vast: there is no such figure"),
        ({"save_s": -1}, "save_s: -1 does not do; give a number of at least 0"),
        ({"save_s": "1"}, "save_s: '1' does not do"),
        ({"save_s": None}, "save_s: None does not do"),
        ({"save_s": True}, "save_s: True does not do"),
        ('{"save_s": NaN}', "save_s: nan does not do"),
        ({"models": 1.5}, "models: 1.5 does not do; give a whole number above 0"),
        ({"checkpoint_every_s": 0}, "checkpoint_every_s: 0 does not do; give a number above 0"),
        ({"marketplace": {"mean_life_s": 0}}, "mean_life_s: 0 does not do; give a number above 0, or null: for ever"),
        ({"marketplace": {"never_share": 1.1}}, "never_share: 1.1 does not do; give a number of at least 0, at most 1"),
        (
            {"serverless": {"drought_share": 0.95}},
            "drought_share: 0.95 does not do; give a number of at least 0, at mo",
        ),
        (
            {"marketplace": {"link_least_mbps": 9_000}},
            "link_least_mbps: 9000.0 does not do; is above link_most_mbps, 1000",
        ),
        ({"marketplace": {"give_up_s": 5}}, "give_up_s: 5.0 does not do; is below startup_mean_s, 36.04"),
        ({"never_saves_share": 0.7, "own_saves_share": 0.7}, "never_saves_share: 0.7 does not do; makes more than all"),
        ([1], "holds no object of names and figures"),
        ("{", "line 1: is not JSON"),
    ],
)
def test_bad_figures_are_named_with_what_would_do(tmp_path: Path, content: Any, said: str) -> None:
    message = refused(tmp_path, content)
    assert said in message
    assert message.startswith("--calibrate ")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(InvalidInput, match=r"--calibrate nowhere\.json: cannot be read"):
        read_calibration("nowhere.json")


NAMES = st.sampled_from([name for name, _ in FRIENDLY.figures()])
VALUES = st.none() | st.booleans() | st.floats() | st.integers(-5, 10**12) | st.text(max_size=4) | st.lists(st.none())


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_whatever_is_given_is_a_world_or_refused_by_name(tmp_path_factory: pytest.TempPathFactory, given_: Any) -> None:
    path = written(tmp_path_factory.getbasetemp(), given_)
    try:
        world = Options().having("world", "measured").having("calibrate", path).world
    except InvalidInput as error:
        assert any(name in error.message for name in given_)
        assert "give" in error.message
    else:
        assert world.breach() is None
        found = dict(world.figures())
        assert all(found[name] == value for name, value in given_.items())


def test_the_guide_names_every_figure() -> None:
    """As its table of them says."""
    text = GUIDE.read_text()
    names = {name.rpartition(".")[2] for name, _ in FRIENDLY.figures()} | {"move_s"}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
