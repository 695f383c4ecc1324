"""A task's embedding: short, the same every time, and near to what resembles the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.merging.transfer import alignment, score
from tests.training.pairs import exactly

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Embeds a task of rows: (prompt, completion)s."""
    from allpass.recipe.settings import Recipe
    from tests.training import tiny
    from workers.trainer import fisher, model, rows, tasks

    folder = tmp_path_factory.mktemp("fisher")
    base = tiny.llama(folder / "base")

    def embed(name: str, pairs: list[tuple[str, str]], **options: Any) -> fisher.Embedding:
        data = [{"prompt": prompt, "completion": completion} for prompt, completion in pairs]
        place: Path = tiny.write_rows(folder / name, "prompt", data)
        recipe = fisher.profiling(Recipe(model=base, precision="fp32", lora_rank=2, lora_dropout=0.5, seed=9))
        with exactly():
            prepared = model.prepare(recipe, ())
            return fisher.embedding(tasks.load(rows.load(place), recipe, prepared), prepared, **options)

    return embed


def test_an_embedding_is_bounded_and_repeatable(embedded: Any) -> None:
    """The same task gives the same numbers in a fresh model; they are few, and no more rows are read than asked."""
    from workers.trainer import fisher

    rows = [(f"{n}+1=", str(n + 1)) for n in range(30)]
    one, again = (embedded("sums", rows, rows=12, seed=5) for _ in range(2))
    other = embedded("sums", rows, rows=12, seed=6)
    assert one == again
    assert one != other
    assert one.rows == 12
    assert 0 < one.tokens < 30 * 12
    assert len(one.fisher) <= fisher.MOST_BLOCKS
    assert len(one.pull) == fisher.SKETCH
    assert min(one.fisher) >= 0
    assert sum(one.fisher) / len(one.fisher) == pytest.approx(1.0)
    assert sum(value**2 for value in one.pull) == pytest.approx(1.0)


def test_tasks_with_the_same_answers_are_nearer_than_those_with_others(embedded: Any) -> None:
    """Half of a task resembles its other half more than the same questions with other answers."""
    even, odd = ([(f"{n}:", "left" if n % 3 else "right") for n in range(first, 40, 2)] for first in (0, 1))
    other = [(f"{n}:", "UNTIL" if n % 3 else "SOON") for n in range(0, 40, 2)]
    one, same, different = (embedded(name, rows) for name, rows in (("even", even), ("odd", odd), ("other", other)))
    pull, fisher = ({name: np.array(getattr(it, kind)) for name, it in (("one", one), ("same", same),
                    ("different", different))} for kind in ("pull", "fisher"))  # fmt: skip
    assert alignment(pull["one"], pull["same"]) > 0.5 > alignment(pull["one"], pull["different"])
    assert score(fisher["one"], fisher["same"]) > score(fisher["one"], fisher["different"])
