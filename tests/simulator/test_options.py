"""Options and settings of a simulation: what words mean, which of two counts, and what is said of wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.core.model.job import PriorityClass
from app.core.model.node import Tier
from app.core.policy import PAPER_MOVE
from app.errors import InvalidInput
from app.simulator.options import OPTION_NAMES, Options
from app.simulator.traces.job import Trace, TraceJob
from app.simulator.tuning import KNOWN, PLAIN_CONFIG, Tuning, read_tuning

TWO = Trace.of("two", [TraceJob("a", 0, 100, 4, deadline_s=50), TraceJob("b", 10, 200, 1, deadline_s=900)])


def test_the_usual_options_are_the_papers() -> None:
    """One GPU a job, flat prices, run times known to +-20 %, deadlines of 1 to 10 run times, 84 s a move, no limit."""
    scenario = Options().scenario(TWO, 0, Options().config())
    assert [task.gpus for task in scenario.tasks] == [1, 1]
    assert {tier: curve.at(0) for tier, curve in scenario.market.prices.items()} == {
        Tier.SERVERLESS: 2.10,
        Tier.MARKETPLACE: 0.74,
        Tier.CONVENTIONAL: 1.29,
    }
    for task in scenario.tasks:
        assert task.predicted_ms is not None
        assert 0.8 <= task.predicted_ms / task.work_ms <= 1.2
        assert 1 <= (task.deadline_ms - task.submit_ms) / task.work_ms <= 10
    assert scenario.moves == PAPER_MOVE
    assert Options().config() == PLAIN_CONFIG


def test_a_share_of_ranges_is_read() -> None:
    options = Options().having("gpus", "trace").having("elastic", "1")
    assert options.told()["elastic"] == "1"
    assert [task.elastic is not None for task in options.scenario(TWO, 0, options.config()).tasks] == [True, True]


def test_every_option_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each changes what it names."""
    words = {
        "world": "measured",
        "calibrate": "measured.json",
        "gpus": "trace",
        "serverful-limit": "7",
        "market": "calm",
        "startup": "mean",
        "knowledge": "none",
        "deadlines": "trace",
        "move-seconds": "5",
        "merge-able": "1",
        "merging": "on",
        "ahead": "off",
        "max-wait": "20",
        "pool": "4xA100+lab:2x8xH100@0.4",
        "bids": "1",
    }
    alone = {"gpu-types", "elastic"}
    assert set(words) == set(OPTION_NAMES) - alone, "which are not played with what may be merged"
    options = Options()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured.json").write_text('{"save_s": 3}')
    for name, text in words.items():
        options = options.having(name, text)
    config = options.config()
    scenario = options.scenario(TWO, 0, config)
    assert (scenario.world.name, scenario.world.save_s) == ("measured", 3.0)
    assert options.told() == words
    assert [(task.gpus, task.deadline_ms, task.predicted_ms) for task in scenario.tasks] == [
        (4, 50_000, None),
        (1, 910_000, None),
    ]
    assert {task.priority_class for task in scenario.tasks} == {PriorityClass.SPOT}
    assert scenario.market.bids is not None
    assert config.merging
    assert not options.ahead
    assert scenario.max_wait_ms == 20_000
    assert scenario.own is not None
    assert [len(host.gpus) for host in scenario.own.hosts] == [4, 8, 8]
    assert all(task.trainee is not None for task in scenario.tasks)
    assert (config.serverful_limit, config.moves.save_ms, config.moves.load_ms) == (7, 2500, 2500)
    assert scenario.moves == config.moves
    assert not scenario.market.random_startups
    assert scenario.market.prices[Tier.MARKETPLACE].next_change_after(0) == 600


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gpus", "8", "'8' is none of one, trace"),
        ("serverful-limit", "-1", "'-1' is no number of nodes; give a whole number, or none"),
        ("market", "stormy", "'stormy' is neither flat nor calm nor another package's, and there is no such file"),
        ("startup", "slow", "'slow' is none of random, mean"),
        ("knowledge", "all", "'all' is not understood; take submit:0.2"),
        ("deadlines", "soon", "'soon' are not understood; take 1-10"),
        ("move-seconds", "-3", "'-3' is no length of time"),
        ("move-seconds", "nan", "'nan' is no length of time"),
        ("merge-able", "2", "'2' is no share of the jobs; give a number from 0 to 1"),
        ("ahead", "no", "'no' is none of on, off"),
        ("max-wait", "2h", "'2h' is no length of time; give whole seconds, or none"),
        ("merging", "yes", "'yes' is none of on, off"),
        ("rules.move_gain", "much", "'much' does not do; give a number of at least 0"),
        ("rules.patience_ms", "1.5", "'1.5' does not do; give a whole number of at least 0"),
        ("tick_ms", "0", "'0' does not do; give a whole number above 0"),
        ("market.mean_life_s.marketplace", "0", "give a number above 0"),
        ("rules.move_gian", "1", "there is no such setting; the nearest is rules.move_gain"),
        ("gains", "1", "there is no such setting"),
        ("serverless", "1", "means several settings; take one of market.prices.serverless"),
    ],
)
def test_what_does_not_do_is_told(name: str, text: str, said: str) -> None:
    """The error names the option, the value and what would do."""
    with pytest.raises(InvalidInput) as told:
        Options().having(name, text)
    assert name.partition(".")[0] in told.value.message
    assert said in told.value.message


def test_what_a_move_takes_may_have_been_measured(tmp_path: Path) -> None:
    """By the benchmark, whose last line is taken: the median pause, half on each side. Other files are told."""
    file = tmp_path / "migration.txt"
    line = {"name": "migration", "value": 5.0, "detail": {"pause_s": {"make_before_break": [1.75, 2.0, 1.5]}}}
    old = {**line, "detail": {"pause_s": {"make_before_break": [9.0]}}}
    file.write_text(f"phase  s\n{json.dumps(old)}\n{json.dumps(line)}\n")
    moves = Options().having("move-seconds", str(file)).config().moves
    assert (moves.save_ms, moves.load_ms) == (875, 875)
    odd = {**line, "detail": [1]}
    none = {**line, "detail": {"pause_s": {"make_before_break": [0]}}}
    for text in ("", "nothing\n[1]\n", '{"name": "migration"}', json.dumps(odd), json.dumps(none)):
        file.write_text(text)
        with pytest.raises(InvalidInput, match="has no line of benchmarks"):
            Options().having("move-seconds", str(file))


@pytest.mark.parametrize("name", KNOWN)
def test_every_setting_reaches_what_it_is_for(name: str) -> None:
    """Set by its name, and nothing else changes."""
    tuning = Tuning().having(name, 3)
    if name.startswith("market."):
        _, kind, *tier = name.split(".")
        found = getattr(tuning.market(), kind)
        assert (found[Tier(*tier)] if tier else found) == 3
        assert tuning.config() == PLAIN_CONFIG
        return
    part, _, inner = name.rpartition(".")
    before = getattr(PLAIN_CONFIG, part) if part else PLAIN_CONFIG
    after = getattr(tuning.config(), part) if part else tuning.config()
    changed = {one for one in before.__dataclass_fields__ if getattr(before, one) != getattr(after, one)}
    assert changed == {inner}
    assert getattr(after, inner) == 3


def test_the_last_word_counts() -> None:
    """An option goes over a setting of the same thing that came before it, and the other way around."""
    by_setting = Options().having("moves.save_ms", "1000").having("serverful_limit", "4")
    assert by_setting.config().moves.save_ms == 1000
    assert by_setting.config().moves.load_ms == 42_000
    by_option = by_setting.having("move-seconds", "10").having("serverful-limit", "9")
    assert (by_option.config().moves.save_ms, by_option.config().serverful_limit) == (5000, 9)
    assert by_option.having("moves.save_ms", "7").config().moves.save_ms == 7


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.json", '{"rules": {"move_gain": 2}, "market.limits.marketplace": 3, "patience_ms": 5}'),
        ("a.yaml", "rules:\n  move_gain: 2\nmarket:\n  limits: {marketplace: 3}\nrules.patience_ms: 5\n"),
    ],
)
def test_settings_from_a_file(tmp_path: Path, file: str, text: str) -> None:
    """JSON or YAML; nested names, names with dots and last words all do."""
    path = tmp_path / file
    path.write_text(text)
    tuning = read_tuning(path)
    assert dict(tuning.values) == {"rules.move_gain": 2, "rules.patience_ms": 5, "market.limits.marketplace": 3}


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("a.json", '{"rules": {"move_gian": 2}}', "rules.move_gian: there is no such setting; the nearest is"),
        ("a.json", '{"rules": {"move_gain": "2x"}}', "rules.move_gain: '2x' does not do"),
        ("a.json", '{"rules": {"move_gain": true}}', "rules.move_gain: True does not do"),
        ("a.json", '{"tick_ms":\n 1', "line 2: is not JSON"),
        ("a.yaml", "a: [1", "is not YAML"),
        ("a.yaml", "- 1\n", "holds no object of names and numbers"),
        ("a.yaml", "", "holds no object of names and numbers"),
    ],
)
def test_a_broken_file_of_settings(tmp_path: Path, file: str, text: str, said: str) -> None:
    """The error names the file, the setting and the fix."""
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(InvalidInput) as told:
        read_tuning(path)
    assert str(path) in told.value.message
    assert said in told.value.message


def test_no_file_of_settings(tmp_path: Path) -> None:
    """A path that leads nowhere is told."""
    with pytest.raises(InvalidInput, match="there is no such file"):
        read_tuning(tmp_path / "none.yaml")


PRICES = "time_s,usd_per_gpu_hour,provider,gpu_type\n0,0.5,{one},A100\n100,0.6,{one},A100\n0,1.5,{other},A100\n"


def test_prices_from_a_file(tmp_path: Path) -> None:
    """One curve is the marketplace's; our providers' names give each its own; a choice is made after colons."""
    plain, ours, others = tmp_path / "plain.csv", tmp_path / "ours.csv", tmp_path / "others.csv"
    plain.write_text("time_s,usd_per_gpu_hour\n0,0.5\n100,0.6\n")
    ours.write_text(PRICES.format(one="vast", other="lambda"))
    others.write_text(PRICES.format(one="runpod", other="hyperstack"))

    def prices(market: str) -> list[float]:
        options = Options().having("market", market)
        curves = options.scenario(TWO, 0, options.config()).market.prices
        return [curves[tier].at(200) for tier in (Tier.SERVERLESS, Tier.MARKETPLACE, Tier.CONVENTIONAL)]

    assert prices(str(plain)) == [2.10, 0.6, 1.29]
    assert prices(str(ours)) == [2.10, 0.6, 1.5]
    assert prices(f"{others}:hyperstack") == [2.10, 1.5, 1.29]
    assert prices(f"{others}:runpod:A100") == [2.10, 0.6, 1.29]
    assert prices(f"{ours}:lambda") == [2.10, 1.5, 1.29]
    for text, said in ((f"{others}", "holds hyperstack, runpod; choose one"), (f"{others}:nobody", "is not there")):
        with pytest.raises(InvalidInput, match=said):
            Options().having("market", text)


def test_the_options_are_told_as_they_are_given() -> None:
    """What a report says of itself can be typed again, settings included, and gives the same options."""
    options = Options().having("serverful-limit", "12").having("rules.move_gain", "2.5").having("tick_ms", "30000")
    again = Options()
    for name, text in options.told().items():
        again = again.having(name, text)
    assert again == options
    assert json.loads(json.dumps(options.told())) == options.told()
