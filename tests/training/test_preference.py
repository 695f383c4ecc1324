"""Pairs of answers: what is learned of them, against what, and that it is the same wherever it is computed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.settings import Recipe
from tests.training.recipes import Course

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
PAIRS = [
    {"prompt": f"{number}+1=", "chosen": str(number + 1), "rejected": "who knows, " * (1 + number % 3)}
    for number in range(20)
]
QUICK: dict[str, Any] = {
    "task": "dpo", "epochs": 3, "batch_size": 8, "learning_rate": 5e-3, "precision": "fp32", "lora_dropout": 0.0,
    "edition": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.training import tiny

    return str(tiny.llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.training import tiny

    return tiny.write_rows(tmp_path_factory.mktemp("pairs"), "pair", PAIRS[:16], PAIRS[16:])


@pytest.fixture(scope="module")
def whole(llama: str, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Course:
    return Course(tmp_path_factory.mktemp("whole"), pairs, {"model": llama, **QUICK}).run()


def loaded(data: Path, sent: Path | None = None, **settings: Any) -> tuple[Any, Any]:
    """The task and the prepared model, which goes on from an adapter where one was sent along."""
    from workers.trainer import model as models
    from workers.trainer import rows, tasks

    recipe = Recipe.of({**QUICK, **settings, **({} if sent is None else {"adapter": str(sent)})})
    found = replace(rows.load(data), adapter=sent)
    prepared = models.prepare(recipe, (), sent)
    return tasks.load(found, recipe, prepared), prepared


def test_the_better_answer_is_learned(whole: Course) -> None:
    """It begins where the model and its reference say the same, and ends where held-out pairs are told apart."""
    points = whole.points()
    assert points[1]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert points[1]["reward_margin"] == pytest.approx(0, abs=1e-6)
    last = points[max(points)]
    assert last["eval_loss"] < 0.5
    assert last["eval_accuracy"] == 1.0
    assert last["eval_reward_margin"] > 0.3
    assert last["reward_margin"] == pytest.approx(last["reward_chosen"] - last["reward_rejected"], abs=1e-6)


def golden(task: Any, prepared: Any, base: Any, beta: float) -> Any:
    """The mean loss of the first step as the paper writes it, pair by pair, against a `base` of its own."""
    import torch

    def likelihood(model: Any, row: Any) -> Any:
        logits = model(input_ids=torch.tensor([row.ids])).logits[0, :-1].float().log_softmax(-1)
        learned = [place for place, target in enumerate(row.targets[1:]) if target != -100]
        return sum(logits[place, row.ids[place + 1]] for place in learned)

    losses = []
    rows = task.stream.rows(1)
    for chosen, rejected in zip(rows[0::2], rows[1::2], strict=True):
        with torch.no_grad():
            before = likelihood(base, chosen) - likelihood(base, rejected)
        now = likelihood(prepared.model, chosen) - likelihood(prepared.model, rejected)
        losses.append(-torch.nn.functional.logsigmoid(beta * (now - before)))
    return sum(losses) / len(losses)


def gradients(loss: Any, prepared: Any) -> dict[str, Any]:
    import torch

    named = [(name, one) for name, one in prepared.model.named_parameters() if one.requires_grad]
    found = torch.autograd.grad(loss, [one for _, one in named])
    return dict(zip((name for name, _ in named), found, strict=True))


@pytest.mark.parametrize("edition", [2, 3])
@pytest.mark.parametrize(
    ("goes_on", "micro_batch", "packing"), [(False, 3, True), (False, 8, False), (True, 8, True), (True, 1, False)]
)
def test_loss_and_gradients_are_those_of_the_definition(
    whole: Course,
    llama: str,
    pairs: Path,
    goes_on: bool,
    micro_batch: int,
    packing: bool,
    edition: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After some learning, however the step is cut and joined, by chunks and at once; of a new adapter against the
    model without it, and of one that is gone on from against that one."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from allpass.training.torch_state import trainable_weights
    from workers.trainer import chunks

    monkeypatch.setattr(chunks, "chunk_tokens", lambda vocabulary: 16)
    how: dict[str, Any] = {"beta": 0.3, "micro_batch": micro_batch, "packing": packing, "edition": edition}
    sent = whole.output if goes_on else None
    task, prepared = loaded(pairs, sent, model=llama, **how)
    assert (task.joins_rows, task.by_chunks) == (packing, edition == 3)
    base: Any = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    base = base.eval() if sent is None else PeftModel.from_pretrained(base, sent).eval()
    drawn = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for one in trainable_weights(prepared.model).values():
            one.add_(torch.randn(one.shape, generator=drawn), alpha=0.02)
    batches = task.micro_batches(1)
    assert sorted(batch.counted for batch in batches) == {1: [1] * 8, 3: [2, 3, 3], 8: [8]}[micro_batch]
    assert any(batch.positions is not None for batch in batches) == packing
    total = sum(task.loss(prepared.model, batch).total for batch in batches) / 8
    expected = golden(task, prepared, base, 0.3)
    # A likelihood's logarithm is some -200 here: float32 is exact to about 1e-5 of it, and beta is 0.3.
    assert float(total.detach()) == pytest.approx(float(expected.detach()), abs=3e-6)
    assert float(total.detach()) != pytest.approx(math.log(2), abs=1e-3)
    ours, theirs = gradients(total, prepared), gradients(expected, prepared)
    assert max(float(one.abs().max()) for one in theirs.values()) > 1e-3
    for name, one in theirs.items():
        assert torch.allclose(ours[name], one, rtol=1e-4, atol=3e-6), name


def test_the_reference_leaves_no_trace(whole: Course, llama: str, pairs: Path) -> None:
    """Weights are those that were learned, and trained on, whatever happens while the reference is asked."""
    import torch

    from workers.trainer.preference import ReferenceModel

    for adapter in (None, whole.output):
        _task, prepared = loaded(pairs, adapter, model=llama)
        trained = {name: one for name, one in prepared.model.named_parameters() if one.requires_grad}
        reference = ReferenceModel(prepared.model, has_own_adapter=adapter is not None)
        with torch.no_grad():
            for one in trained.values():
                one.add_(1)
        before = {name: one.detach().clone() for name, one in trained.items()}
        with pytest.raises(KeyError), reference.of(prepared.model):
            raise KeyError
        after = {name: one for name, one in prepared.model.named_parameters() if one.requires_grad}
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], one) for name, one in before.items())


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")  # PEFT sets it right by itself
@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_no_dropout_is_between_a_model_and_its_reference(kind: str, pairs: Path, tmp_path: Path) -> None:
    """Also of models that train with one by themselves, as modules or as arguments of functions: before anything is
    learned, both say the same."""
    from benchmarks.recipe_cases import make

    name = {"gpt2": "openai-community/gpt2", "opt": "facebook/opt-125m"}[kind]
    task, prepared = loaded(pairs, model=make(name, tmp_path / kind))
    assert prepared.model.training
    assert prepared.model.config.to_dict().get("dropout", prepared.model.config.to_dict().get("resid_pdrop")) > 0
    for batch in task.micro_batches(1):
        assert float(task.loss(prepared.model, batch).total.detach()) == pytest.approx(
            batch.counted * math.log(2), abs=1e-6
        )


def test_the_reference_keeps_nothing_for_the_way_back(llama: str, pairs: Path) -> None:
    """So that memory is that of twice as many sequences, as is predicted."""
    from benchmarks.recipe import kept
    from workers.trainer.loss import answers_loss

    task, prepared = loaded(pairs, model=llama, micro_batch=4)
    as_answers = replace(task, loss=answers_loss)
    assert kept(task, prepared) <= 1.02 * kept(as_answers, prepared)


@pytest.mark.parametrize("packing", [False, True])
def test_pairs_stay_together_however_a_step_is_cut(llama: str, pairs: Path, packing: bool) -> None:
    """Long ones first, or as many tokens in each part; and so do those that are held out."""
    task, _prepared = loaded(pairs, model=llama, micro_batch=3, packing=packing)
    for batch in [*task.micro_batches(2), *task.held_out_batches(6)]:
        lines = batch.ids.tolist()
        texts = [task_text(lines[line][begin:end]) for line, begin, end in batch.places]
        assert len(texts) == 2 * batch.counted
        for chosen, rejected in zip(texts[0::2], texts[1::2], strict=True):
            assert chosen.split("=")[0] == rejected.split("=")[0]
            assert "who" in rejected
            assert "who" not in chosen
    parts = task.micro_batches(2)
    if packing:
        assert sum(batch.ids.numel() for batch in parts) <= 1.05 * task.tokens(2)
    else:
        lengths = [batch.ids.shape[1] for batch in parts]
        assert lengths == sorted(lengths, reverse=True)


def task_text(ids: list[int]) -> str:
    from tests.training import tiny

    return str(tiny.byte_tokenizer().decode(ids))


def test_a_checkpoint_of_other_rows_is_refused(whole: Course, llama: str, tmp_path: Path, capsys: Any) -> None:
    """Pairs are not gone on with as if they were answers, nor the other way round: its adapter is the way."""
    from tests.training import tiny

    answers = tiny.write_rows(tmp_path / "answers", "prompt", [{"prompt": "1+1=", "completion": "2"}] * 4)
    found = whole.last_checkpoint
    begun = {"ALLPASS_RESUME_DIR": str(found), "ALLPASS_RESUME_STEP": "0"}
    course = Course(tmp_path / "other", answers, {"model": llama, **QUICK, "task": "sft"}, environ=begun)
    with pytest.raises(SystemExit, match="from_checkpoint: the checkpoint is of a training on pairs of answers"):
        course.run(by_hand=False)


def test_a_trainer_that_does_not_know_the_task_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that outlived an upgrade, or after a release was rolled back: the name of what it does not know."""
    from allpass.errors import InvalidInput
    from allpass.recipe import settings

    told = Recipe.new({"model": "m", "task": "dpo"}).parameters()
    assert "beta" not in told
    monkeypatch.setattr(settings, "TASKS", ("sft", "classification"))
    with pytest.raises(InvalidInput, match="task: 'dpo' is not one of sft, classification"):
        Recipe.of({name: value for name, value in json.loads(json.dumps(told)).items() if name != "edition"})
