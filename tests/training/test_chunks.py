"""The recipe's loss by chunks of tokens: the same loss and gradients, and no more logits at once than a chunk has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.recipe.chunks import LEAST_TOKENS, MOST_VALUES, chunk_tokens
from allpass.recipe.encoding import IGNORED, Example
from allpass.recipe.settings import Recipe
from benchmarks.recipe_cases import CONFIGS
from tests.training.recipes import Course
from tests.training.scripts import files_of

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"),  # PEFT sets it right by itself
]
ROWS = [{"prompt": f"{number}=", "completion": "7" * (1 + (number * number) % 31)} for number in range(12)]
PAIRS = [{"prompt": f"{number}=", "chosen": "7" * (2 + number), "rejected": "no, " * 3} for number in range(12)]
COMMON: dict[str, Any] = {"batch_size": 8, "micro_batch": 4, "precision": "fp32", "lora_dropout": 0.0, "edition": 3}
FEW = 16  # tokens in a chunk: a step here learns some hundred


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.training import tiny

    return str(tiny.llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("data")
    return {
        "sft": tiny.write_rows(folder / "answers", "prompt", ROWS[:10], ROWS[10:]),
        "dpo": tiny.write_rows(folder / "pairs", "pair", PAIRS[:10], PAIRS[10:]),
    }


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    yield
    import torch

    torch.use_deterministic_algorithms(False)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.trainer import chunks

    monkeypatch.setattr(chunks, "chunk_tokens", lambda vocabulary: FEW)


def loaded(model: str, rows: Path, **told: Any) -> tuple[Any, Any]:
    """The task and the prepared model; what is trained is no longer what says nothing."""
    import torch

    from workers.trainer import model as models
    from workers.trainer import rows as read
    from workers.trainer import tasks

    recipe, found = Recipe.of({"model": model, **COMMON, **told}), read.load(rows)
    prepared = models.prepare(recipe, found.labels)
    task = tasks.load(found, recipe, prepared)
    drawn = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, one in sorted(prepared.model.named_parameters()):
            if one.requires_grad:
                one.add_(0.02 * torch.randn(one.shape, generator=drawn).to(one.dtype))
    return task, prepared


def learned(task: Any, prepared: Any) -> tuple[float, Any]:
    """The summed loss of the first step, and the gradient of all that is trained."""
    import torch

    total = 0.0
    for batch in task.micro_batches(1):
        with prepared.computing():
            loss = task.loss(prepared.model, batch).total
        loss.backward()
        total += float(loss.detach())
    trained = [one for one in prepared.model.parameters() if one.requires_grad]
    return total, torch.cat([one.grad.flatten().float() for one in trained if one.grad is not None])


def assert_near(by_chunks: tuple[float, Any], at_once: tuple[float, Any], most: float) -> None:
    assert by_chunks[0] == pytest.approx(at_once[0], rel=most)
    assert by_chunks[1].shape == at_once[1].shape
    assert float(at_once[1].norm()) > 0
    assert float((by_chunks[1] - at_once[1]).norm()) <= most * float(at_once[1].norm())


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_every_published_configuration_learns_the_same(number: int, data: dict[str, Path], tmp_path: Path) -> None:
    """With its bias, its caps and its scales, of which the trainer knows nothing; answers and pairs in turn."""
    from benchmarks.recipe_cases import make

    base = make(list(CONFIGS)[number], tmp_path / "base", dropout=False)
    task = ("sft", "dpo")[number % 2]
    with pytest.MonkeyPatch.context() as patch:
        from workers.trainer import chunks

        patch.setattr(chunks, "chunk_tokens", lambda vocabulary: FEW)
        told, prepared = loaded(base, data[task], task=task)
    assert told.by_chunks
    plain, other = loaded(base, data[task], task=task, edition=2)
    assert not plain.by_chunks
    assert_near(learned(told, prepared), learned(plain, other), 1e-6)


@pytest.mark.parametrize("family", ["mixtral", "falcon", "gpt_bigcode"])
def test_so_do_the_other_families_whose_memory_is_predicted(family: str) -> None:
    """A prediction for the loss by chunks is one for what the trainer then does."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from workers.trainer.chunks import divide
    from workers.trainer.model import Prepared

    wide = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    wide |= {"num_key_value_heads": 2} if family == "mixtral" else {}
    config = AutoConfig.for_model(family, vocab_size=300, **wide)
    made: Any = AutoModelForCausalLM.from_config(config)
    assert divide(Prepared(made.train(), None, torch.device("cpu"), None, 0)) is not None


WAYS: dict[str, dict[str, Any]] = {
    "all of it, tied": {"method": "full", "precision": "fp32"},
    "under autocast": {"method": "full", "precision": "autocast"},
    "narrow": {"precision": "bf16"},
    "narrower": {"precision": "fp16"},
    "recomputed": {"checkpointing": True},
    "recomputed under autocast": {"method": "full", "precision": "autocast", "checkpointing": True},
    "an adapter on the head": {"lora_targets": ["q_proj", "lm_head"]},
    "on the head alone": {"lora_targets": ["lm_head"]},
    "norms of its matrices": {"use_dora": True},
    "padded": {"packing": False},
}


@pytest.mark.parametrize(
    ("way", "task"),
    [*((way, "sft") for way in WAYS), *((way, "dpo") for way in WAYS if WAYS[way].get("method") != "full")],
)
def test_however_it_is_trained_the_same_is_learned(
    way: str, task: str, llama: str, data: dict[str, Path], few: None
) -> None:
    """To the rounding of what it is computed in. A head that is trained has its gradient of all chunks."""
    narrow = WAYS[way].get("precision") not in {None, "fp32"}
    found = {}
    for edition in (3, 2):
        told, prepared = loaded(llama, data[task], task=task, edition=edition, **WAYS[way])
        assert told.by_chunks == (edition == 3)
        found[edition] = learned(told, prepared)
    assert_near(found[3], found[2], 3e-2 if narrow else 1e-6)


@pytest.fixture(scope="module")
def divided(llama: str, data: dict[str, Path]) -> tuple[Any, Any, Any]:
    import torch

    from workers.trainer.chunks import divide

    task, prepared = loaded(llama, data["sft"])
    torch.use_deterministic_algorithms(False)
    return divide(prepared), task, prepared


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=2, max_size=20), min_size=1, max_size=5),
    st.integers(1, 60),
)
def test_whatever_is_learned_in_whatever_chunks(
    divided: tuple[Any, Any, Any], masks: list[list[bool]], tokens: int
) -> None:
    """Loss, right guesses and gradients are those of all tokens at once; what is not learned adds none."""
    import torch

    from workers.trainer.loss import next_token_loss

    parts, task, prepared = divided
    rows = [
        Example(
            tuple((7 * place + 3 * number) % 250 for place in range(len(mask))),
            tuple((7 * place + 3 * number) % 250 if is_learned else IGNORED for place, is_learned in enumerate(mask)),
        )
        for number, mask in enumerate(masks)
    ]
    batch = task.batch(rows)
    trained = [one for one in prepared.model.parameters() if one.requires_grad]
    found = []
    for loss in (replace(parts, tokens=tokens).loss, next_token_loss):
        told = loss(prepared.model, batch)
        gradients = torch.autograd.grad(told.total, trained)
        found.append((float(told.total.detach()), int(told.hits), torch.cat([one.flatten() for one in gradients])))
    (one, hits, gradient), (other, hits_too, gradient_too) = found
    assert one == pytest.approx(other, rel=1e-6, abs=1e-9)
    assert hits == hits_too
    assert float((gradient - gradient_too).norm()) <= 1e-6 * float(gradient_too.norm())


def test_only_what_is_learned_reaches_the_head_a_chunk_at_a_time(llama: str, data: dict[str, Path], few: None) -> None:
    """All chunks but the last once more on the way back; without gradients none."""
    import torch

    task, prepared = loaded(llama, data["sft"])
    (batch, *_) = task.micro_batches(1)
    asked: list[int] = []
    prepared.model.get_output_embeddings().register_forward_hook(
        lambda module, given, made: asked.append(made.shape[:-1].numel())
    )
    full, rest = divmod(batch.counted, FEW)
    sizes = [FEW] * full + [rest] * (rest > 0)
    assert len(sizes) > 2
    total = task.loss(prepared.model, batch).total
    assert asked == [0, *sizes]
    total.backward()
    assert asked[1 + len(sizes) :] == sizes[-2::-1]
    del asked[:]
    with torch.no_grad():
        task.loss(prepared.model, batch)
    assert asked == [0, *sizes]


def logits_bytes(llama: str, rows: Path, **told: Any) -> tuple[int, int]:
    """The most that is there at once of what is as wide as the vocabulary, and what of it waits for the way back."""
    import torch

    from benchmarks.recipe_logits import Logits

    task, prepared = loaded(llama, rows, **told)
    (batch,) = task.micro_batches(1)
    vocabulary = prepared.model.get_output_embeddings().weight.shape[0]
    own = {one.untyped_storage().data_ptr() for one in prepared.model.parameters()}
    kept: dict[int, int] = {}

    def keep(one: Any) -> Any:
        if one.shape[-1:] == (vocabulary,) and one.untyped_storage().data_ptr() not in own:
            kept[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        return one

    with Logits(prepared.model) as seen:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            total = task.loss(prepared.model, batch).total
        total.backward()
    return seen.most, sum(kept.values())


def test_logits_do_not_grow_with_what_is_learned(llama: str, few: None, tmp_path: Path) -> None:
    """Neither the most that is there at once, on the way there or back, nor what is kept between: at once both grow
    with every token."""
    from tests.training import tiny

    found = {}
    for answer in (40, 160):
        rows = tiny.write_rows(
            tmp_path / str(answer),
            "prompt",
            [{"prompt": f"{number}", "completion": "7" * answer} for number in "12345678"],
        )
        for edition in (2, 3):
            found[edition, answer] = logits_bytes(llama, rows, edition=edition, micro_batch=8)
    item = 259 * 4  # of a token, in float32
    assert found[3, 160][0] == found[3, 40][0]
    assert found[3, 160][0] <= 3 * FEW * item
    assert found[3, 160][1] <= FEW * item
    assert all(more > 3.5 * less for more, less in zip(found[2, 160], found[2, 40], strict=True))
    assert found[2, 160][0] > 20 * found[3, 160][0]


def test_a_chunk_keeps_a_gpu_busy_and_its_logits_small() -> None:
    """As many tokens as a head's weights are worth reading for, and more of a small vocabulary. The numbers are part
    of edition 3: other chunks are other sums."""
    assert [chunk_tokens(words) for words in (32_000, 50_257, 65_536, 128_256, 256_000)] == [1048, 667, 512, 512, 512]
    assert (LEAST_TOKENS, MOST_VALUES) == (512, 1 << 25)
    assert chunk_tokens(0) == MOST_VALUES


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning")  # of an adapted head
@pytest.mark.parametrize("kind", ["sft", "dpo", "full", "dropout"])
def test_stopped_anywhere_it_ends_as_if_left_alone(
    kind: str, llama: str, data: dict[str, Path], few: None, tmp_path: Path
) -> None:
    """Bit for bit, in many chunks; what is random in a head that is adapted is the same when it is computed again."""
    how: dict[str, dict[str, Any]] = {
        "sft": {},
        "dpo": {"task": "dpo"},
        "full": {"method": "full", "precision": "autocast"},
        "dropout": {"lora_dropout": 0.3, "lora_targets": ["v_proj", "lm_head"], "micro_batch": 8},
    }
    told = {"model": llama, **COMMON, "steps": 4, "learning_rate": 5e-3, "evaluate_every": 2, **how[kind]}
    rows = data[how[kind].get("task", "sft")]
    whole, moved = (Course(tmp_path / name, rows, told) for name in ("whole", "moved"))
    assert moved.run([1, 2, 3]).points() == whole.run().points()
    assert files_of(moved.output) == files_of(whole.output)
    begun = Course(tmp_path / "plain", rows, {**told, "edition": 2}).run().points()
    if kind in {"sft", "dpo"}:
        assert whole.points()[4]["loss"] == pytest.approx(begun[4]["loss"], rel=1e-4)


def test_what_is_dropped_at_random_is_the_same_on_the_way_back(llama: str, data: dict[str, Path], few: None) -> None:
    """The gradient is that of the loss which was reported, also where chance had a part in it."""
    import torch

    task, prepared = loaded(llama, data["sft"], lora_dropout=0.3, lora_targets=["lm_head"])
    (batch, *_) = task.micro_batches(1)
    (matrix,) = (one for name, one in prepared.model.named_parameters() if "lora_B" in name)

    def total() -> Any:
        torch.manual_seed(5)
        return task.loss(prepared.model, batch).total

    (gradient,) = torch.autograd.grad(total(), matrix)
    found = []
    for shift in (1e-2, -2e-2):
        with torch.no_grad():
            matrix.add_(gradient, alpha=shift / float(gradient.norm()))
        found.append(float(total().detach()))
    assert (found[0] - found[1]) / 2e-2 == pytest.approx(float(gradient.norm()), rel=1e-2)


def other_forward(how: str) -> Any:
    """What a model may do between its body and its head, or beside them, that a part of its tokens does not tell."""
    from transformers import LlamaForCausalLM

    plain = LlamaForCausalLM.forward

    def forward(self: Any, input_ids: Any = None, **more: Any) -> Any:
        found = plain(self, input_ids=input_ids, **more)
        if how == "neighbours":
            found.logits = found.logits + 0.5 * found.logits.roll(1, dims=1)
        elif how == "its tokens":
            found.logits = found.logits + 0.1 * (input_ids[:, -found.logits.shape[1] :, None] % 7)
        elif how == "twice":
            self.model(input_ids=input_ids, use_cache=False)
        elif how == "another answer":
            found.logits = found.logits * (1 + (self.model(input_ids=input_ids).last_hidden_state.mean()))
        return found

    return forward


@pytest.mark.parametrize("how", ["neighbours", "its tokens", "twice", "another answer"])
def test_where_chunks_would_give_another_loss_it_is_computed_at_once(
    how: str, llama: str, data: dict[str, Path], few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit as before there were chunks, and its owner is told."""
    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "forward", other_forward(how))
    # Of the model above no part of the logits may be asked for, which edition 2 would do as well.
    found = {}
    for edition in (2, 3):
        task, prepared = loaded(llama, data["sft"], edition=edition, packing=False)
        found[edition] = learned(task, prepared)
        assert not task.by_chunks
        assert any("of all at once" in remark for remark in task.remarks) == (edition == 3)
    assert found[2][0] == found[3][0]
    assert found[2][1].equal(found[3][1])


def test_nothing_is_left_of_the_question(llama: str, data: dict[str, Path]) -> None:
    """Neither in what is random, nor in the model: whoever asks may be in the middle of a training."""
    import torch

    from workers.trainer.chunks import divide

    _task, prepared = loaded(llama, data["sft"])
    drawn = torch.get_rng_state()
    assert divide(prepared) is not None
    assert torch.equal(torch.get_rng_state(), drawn)
    assert prepared.model.training
    assert all(one.grad is None for one in prepared.model.parameters())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in prepared.model.modules())
    assert not any("forward" in vars(one) for one in prepared.model.modules())


def test_a_forward_that_somebody_gave_the_body_is_there_again_after(llama: str, data: dict[str, Path]) -> None:
    """As libraries do that move what goes in and out between devices."""
    from workers.trainer.chunks import divide

    _task, prepared = loaded(llama, data["sft"])
    body = prepared.model.get_base_model().model
    own = body.forward
    calls: list[int] = []

    def theirs(*args: Any, **more: Any) -> Any:
        calls.append(1)
        return own(*args, **more)

    body.forward = theirs
    assert divide(prepared) is not None
    assert body.forward is theirs
    assert calls


def test_a_machine_that_would_compute_it_otherwise_says_so(
    llama: str, data: dict[str, Path], few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than go on with sums that are not quite the same, either way round."""
    from workers.trainer import tasks

    asked = tasks.divide

    class Elsewhere(Course):
        is_here = True

        def _environment(self, place: Path, resume_from: Path | None) -> dict[str, str]:
            is_able = self.is_here == (resume_from is None)
            monkeypatch.setattr(tasks, "divide", asked if is_able else lambda prepared: None)
            return super()._environment(place, resume_from)

    for is_here, words in (
        (True, "at once, and where this training began it was by chunks"),
        (False, "by chunks, and"),
    ):
        course = Elsewhere(tmp_path / str(is_here), data["sft"], {"model": llama, **COMMON, "steps": 4})
        course.is_here = is_here
        with pytest.raises(ValueError, match=f"loss: on this machine the model's loss is computed .*{words}"):
            course.run([2])


@pytest.mark.parametrize("edition", [1, 2])
def test_jobs_of_older_versions_are_not_asked(
    edition: int, llama: str, data: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on with the very loss that they had."""
    from workers.trainer import loss, tasks

    monkeypatch.setattr(tasks, "divide", lambda prepared: pytest.fail("it was asked"))
    task, _prepared = loaded(llama, data["sft"], edition=edition)
    assert task.loss is {1: loss.next_token_loss, 2: loss.answers_loss}[edition]


def test_a_row_without_an_answer_teaches_nothing_and_stops_nothing(llama: str, data: dict[str, Path]) -> None:
    """Alone in its micro-batch it reaches the head with no token at all."""
    task, prepared = loaded(llama, data["sft"])
    loss = task.loss(prepared.model, task.batch([Example((1, 18, 31), (IGNORED,) * 3)])).total
    loss.backward()
    assert float(loss.detach()) == 0
