"""The loss of a causal model by chunks of tokens, so that logits of no more than one chunk exist at once.

What a model makes of its last hidden states (a bias, a cap, a scale) is its own affair: each chunk goes through the
model's own forward, in which the body answers with that chunk rather than by being computed. Of every chunk but the
last, which the way back begins with, logits are computed again there. Nothing here knows an architecture; whether it is
right for a model is asked of the model (`divide`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from allpass.recipe.chunks import chunk_tokens
from allpass.recipe.encoding import IGNORED
from workers.trainer.batches import Batch
from workers.trainer.loss import Loss, given
from workers.trainer.model import Prepared

_PROBED = 24  # tokens
_MOST_OFF = {torch.float32: 1e-3}  # of loss and gradient, as a share of them
_MOST_OFF_NARROW = 0.1  # 16 bits round by themselves
_NOT_SO = (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError)  # of a forward that is otherwise


@dataclass(frozen=True)
class Divided:
    """A model in two parts: `body` makes hidden states of tokens, and the rest of `inner` makes logits of these.
    `kind`: of the body's output. `tokens`: in a chunk."""

    inner: Any
    body: Any
    kind: type[Any]
    tokens: int

    def loss(self, model: Any, batch: Batch) -> Loss:
        """As `answers_loss`."""
        each, hits, _ = self._read(model, batch)
        return Loss(each.sum(), hits.sum())

    def log_probabilities(self, model: Any, batch: Batch) -> Any:
        """Of what is learned of each sequence in `batch.places`, after what precedes it."""
        each, _, learned = self._read(model, batch)
        length = batch.ids.shape[1]
        ends = [[line * length + place for place in (begin, end - 1)] for line, begin, end in batch.places]
        # Sums over what lies side by side are of the same bits each time, on GPUs as well; sums by number are not.
        bounds = torch.searchsorted(learned, torch.tensor(ends, device=learned.device))
        return -torch.stack([each[first:last].sum() for first, last in bounds.tolist()])

    def surprises(self, states: Any, targets: Any) -> tuple[Any, Any]:
        """Of each target its negative log-likelihood, and whether it was the first guess."""
        parts = list(zip(states.split(self.tokens), targets.split(self.tokens), strict=True))
        *others, last = parts
        if torch.is_grad_enabled():
            found = [checkpoint(self._surprises, *part, use_reentrant=False) for part in others]
        else:
            found = [self._surprises(*part) for part in others]
        found.append(self._surprises(*last))
        return torch.cat([each for each, _ in found]), torch.cat([hits for _, hits in found])

    def states(self, model: Any, batch: Batch) -> Any:
        """The last hidden states of all tokens. What comes after the body gets none of them."""
        found: list[Any] = []

        def take(module: Any, args: Any, output: Any) -> Any:
            found.append(output.last_hidden_state)
            return self.kind(last_hidden_state=output.last_hidden_state[:, :0])

        hook = self.body.register_forward_hook(take)
        try:
            model(**given(batch))
        finally:
            hook.remove()
        (states,) = found
        return states

    def logits(self, states: Any) -> Any:
        """What the model makes of so many hidden states. Raises ValueError where it does not ask its body for them."""
        asked: list[bool] = []

        def answer(*args: Any, **more: Any) -> Any:
            asked.append(True)
            return self.kind(last_hidden_state=states.unsqueeze(0).clone())  # FSDP marks it, which no view can be

        ids = torch.zeros((1, len(states)), dtype=torch.long, device=states.device)
        with _answering(self.body, answer):
            found = self.inner(input_ids=ids, use_cache=False).logits
        if len(asked) != 1:
            raise ValueError(f"the body was asked {len(asked)} times")
        return found.squeeze(0)

    def _read(self, model: Any, batch: Batch) -> tuple[Any, Any, Any]:
        """The surprises of a batch, and the places that they are of: numbers over all its lines."""
        following = functional.pad(batch.targets[:, 1:], (0, 1), value=IGNORED).flatten()
        learned = (following != IGNORED).nonzero().flatten()
        chosen = self.states(model, batch).flatten(0, 1).index_select(0, learned)
        return *self.surprises(chosen, following[learned]), learned

    def _surprises(self, states: Any, targets: Any) -> tuple[Any, Any]:
        logits = self.logits(states)
        each = functional.cross_entropy(logits.float(), targets, reduction="none")
        return each, logits.argmax(dim=-1) == targets


def divide(prepared: Prepared) -> Divided | None:
    """The model in two parts; None where it cannot be parted, or where it then gives another loss or other gradients.
    Nothing random is used, and the model is left as it was."""
    model = prepared.model
    was_training = model.training
    model.eval()
    try:
        with prepared.computing():
            return next((one for one in ways_to_divide(model, prepared.device) if _is_right(one, prepared)), None)
    except torch.cuda.OutOfMemoryError:
        raise  # which says nothing of the model
    except _NOT_SO:
        return None
    finally:
        model.train(was_training)


def ways_to_divide(model: Any, device: Any) -> Iterator[Divided]:
    """In each way that there may be: most models ask the body that they name, some a decoder within it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    named = getattr(inner, "base_model", inner)
    for body in (named, getattr(named, "decoder", None)):
        if not isinstance(body, torch.nn.Module) or body is inner:
            continue
        answered: list[Any] = []
        hook = body.register_forward_hook(lambda module, args, output, into=answered: into.append(output))
        try:
            with torch.no_grad():
                vocabulary = model(input_ids=_words(model, device), use_cache=False).logits.shape[-1]
        finally:
            hook.remove()
        if len(answered) == 1 and hasattr(answered[0], "last_hidden_state"):
            yield Divided(inner, body, type(answered[0]), chunk_tokens(vocabulary))


def _is_right(divided: Divided, prepared: Prepared) -> bool:
    """Whether a few tokens have the same loss by chunks as from the model as it is, and their hidden states the same
    gradient: that of the body follows from it. Chunks are small and of unlike sizes here."""
    ids = _words(prepared.model, prepared.device)
    batch = Batch(ids, None, ids, ids.numel() - 1)
    small = replace(divided, tokens=_PROBED // 3 + 1)
    with torch.no_grad():
        states = small.states(prepared.model, batch)
    states = states.detach().requires_grad_()
    with torch.enable_grad():
        expected = functional.cross_entropy(
            _at_once(divided, prepared.model, ids, states), ids[0, 1:], reduction="none"
        )
        found, _ = small.surprises(states[0, :-1], ids[0, 1:])
        whole, by_chunks = (torch.autograd.grad(one.sum(), states)[0] for one in (expected, found))
    most = _MOST_OFF.get(prepared.autocast or states.dtype, _MOST_OFF_NARROW)
    return _is_near(found.detach(), expected.detach(), most) and _is_near(by_chunks, whole, most)


def _at_once(divided: Divided, model: Any, ids: Any, states: Any) -> Any:
    """Logits of all but the last token by the model as it is, from hidden states that are given to it."""
    hook = divided.body.register_forward_hook(lambda module, args, output: divided.kind(last_hidden_state=states))
    try:
        return model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    finally:
        hook.remove()


def _is_near(one: Any, other: Any, most: float) -> bool:
    off = float((one.float() - other.float()).norm())
    return off <= most * float(other.float().norm())  # False where either is no number


def _words(model: Any, device: Any) -> Any:
    words = model.get_input_embeddings().num_embeddings
    return (torch.arange(_PROBED, device=device) * 37 + 11).remainder(words).unsqueeze(0)


@contextlib.contextmanager
def _answering(body: Any, answer: Any) -> Iterator[None]:
    """While this lasts, a module answers so. Others may have given it a forward of its own, which is put back."""
    before = vars(body).get("forward")
    body.forward = answer
    try:
        yield
    finally:
        if before is None:
            del body.forward
        else:
            body.forward = before
