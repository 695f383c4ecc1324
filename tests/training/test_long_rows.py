"""Rows that are longer than what is read of them: cut, or left out and told, or refused where they are too many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.lengths import most_positions
from tests.training.recipes import Course

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 4, "learning_rate": 5e-3, "precision": "fp32"}
ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(12)]
LONG = {"prompt": "x" * 100, "completion": "y"}


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "odd", "text_config": {"max_position_embeddings": 77}}, 77),
        ({"model_type": "bloom"}, None),
        ({"model_type": "llama", "max_position_embeddings": 4096, "rope_theta": 10000.0}, None),
        ({"model_type": "gptj", "n_positions": 2048, "rotary_dim": 64}, None),
        ({"model_type": "falcon", "max_position_embeddings": 2048, "alibi": True}, None),
        ({"model_type": "deberta-v2", "max_position_embeddings": 512, "position_biased_input": False}, None),
        ({"model_type": "opt", "max_position_embeddings": 2048, "rope_parameters": None}, 2048),
        ({"model_type": "xlnet", "max_position_embeddings": -1}, None),
        ({"model_type": "odd", "max_position_embeddings": True}, None),
        ({"model_type": "odd", "max_position_embeddings": "512"}, None),
    ],
)
def test_what_a_model_reads_is_in_its_configuration(config: dict[str, Any], most: int | None) -> None:
    """Some number their positions from the padding token on."""
    assert most_positions(config) == most


def test_a_text_that_is_longer_than_the_models_positions_is_cut(tmp_path: Path, capfd: Any) -> None:
    """Also where more tokens were asked for: the limit is the model's, and the log says so."""
    from tests.training import tiny

    votes = [{"text": f"{label} {number}", "label": label} for number in range(6) for label in ("for", "against")]
    votes[3]["text"] *= 100
    rows = tiny.write_rows(tmp_path / "votes", "labelled", votes[:10], votes[10:], ("against", "for"))
    parameters = {"model": tiny.bert(tmp_path / "bert"), "task": "classification", **QUICK}
    course = Course(tmp_path / "run", rows, parameters).run()
    assert max(course.points()) == 6
    told = "training: 1 of 10 training rows are longer than 256 tokens (the most that this model reads) and were cut"
    assert told in capfd.readouterr().out


@pytest.mark.parametrize("stops", [[], [2]])
def test_rows_with_nothing_left_to_learn_are_left_out_and_told(tmp_path: Path, capfd: Any, stops: list[int]) -> None:
    """They take no part: epochs and steps are those of the other rows, also where it goes on."""
    from tests.training import tiny

    rows = tiny.write_rows(tmp_path / "rows", "prompt", [*ROWS[:5], LONG, *ROWS[5:8]], [*ROWS[8:], LONG])
    parameters = {"model": tiny.llama(tmp_path / "llama"), **QUICK, "sequence_length": 20}
    course = Course(tmp_path / "run", rows, parameters).run(stops)
    assert max(course.points()) == 4  # eight rows, not nine
    told = capfd.readouterr().out
    assert "training: 8 rows, 4 held out, 4 steps" in told
    assert "training: 1 of 9 training rows have no answer left then, and are not used: row 6" in told
    assert "training: 1 of 5 held-out rows have no answer left then, and are not used: row 5" in told
    alone = tiny.write_rows(tmp_path / "others", "prompt", ROWS[:8], ROWS[8:])
    without = Course(tmp_path / "without", alone, parameters).run()
    assert course.points() == without.points()


def test_too_many_rows_with_nothing_to_learn_are_refused(tmp_path: Path) -> None:
    """It would be another training than was meant: which rows, and what to do, is told."""
    from tests.training import tiny

    rows = tiny.write_rows(tmp_path / "rows", "prompt", [LONG, *ROWS, *[LONG] * 8], ROWS[:1])
    parameters = {"model": tiny.llama(tmp_path / "llama"), **QUICK, "sequence_length": 20}
    with pytest.raises(SystemExit) as left:
        Course(tmp_path / "run", rows, parameters).run(by_hand=False)
    assert left.value.code == (
        "error: 9 of 21 training rows have no answer within the first 20 tokens (rows 1, 14, 15, 16, 17 and 4 more): "
        "choose a larger sequence_length, or leave them out"
    )
    (told,) = (tmp_path / "run" / "part0" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(told)["training"].keys() == {"libraries"}  # and no step


def test_a_job_whose_model_rewrites_earlier_answers_takes_as_many_steps_as_it_has_rows(
    tmp_path: Path, capfd: Any
) -> None:
    """One row is two sequences there, both in the same step; stopped and resumed it is the same."""
    from tests.training import tiny

    base = tiny.llama(tmp_path / "llama")
    template = (
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.last %}<think>{% endif %}"
        "{{ m.content }}|{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (Path(base) / "chat_template.jinja").write_text(template)
    talks = [
        [{"role": role, "content": f"{role} {number} {turn}"} for turn in (1, 2) for role in ("user", "assistant")]
        for number in range(8)
    ]
    rows = tiny.write_rows(
        tmp_path / "rows", "messages", [{"messages": one} for one in talks[:6]], [{"messages": talks[6]}]
    )
    parameters = {"model": base, **QUICK, "lora_dropout": 0.1}
    whole = Course(tmp_path / "whole", rows, parameters).run()
    told = capfd.readouterr().out
    assert "training: 6 training rows are 12 sequences, as the model's chat template does not show earlier" in told
    assert max(whole.points()) == 4
    parts = Course(tmp_path / "parts", rows, parameters).run([1, 3])
    assert json.dumps(parts.points()) == json.dumps(whole.points())
