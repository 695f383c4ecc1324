"""What a decision saw, kept so small that every one can be kept, and so whole that it can be taken again.

Most of a snapshot is as it was at the decision before. So one decision in many is recorded whole, and those after it by
what is different from that one: fields of views that have changed, views that came, ids of those that went. A reader
needs two records at most, whatever was lost between them. What is on offer is the largest part and changes seldom: it
is a record of its own, known by its hash, to which decisions refer.

Records are for the release that wrote them. Reading is strict: one of another release is refused rather than decided
again on what it does not say.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from app.core import codec
from app.core.model.offer import Offer
from app.core.model.plan import Plan
from app.core.model.snapshot import Snapshot
from app.core.policy import PolicyConfig, PolicyState
from app.errors import InvalidInput

FORMAT = 1
MOST_DELTAS = 200  # after one that is whole
_LARGE_SHARE = 0.5  # of the whole one's size: a delta this large is worth a whole one next time
_LEVEL = 6
# What comes by the thousand and is told apart by an id: views of the snapshot, and why jobs wait.
_KEYED: Mapping[str, str] = {
    "jobs": "job_id",
    "runs": "run_id",
    "nodes": "node_id",
    "merges": "merge_id",
    "waiting": "job_id",
}
_OFFERS, _WAITING = "offers", "waiting"

_Views = dict[str, dict[str, Any]]  # by id


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision with all that it rests on: `policy.decide(Board.of(snapshot), state, config)` gave `plan`."""

    snapshot: Snapshot
    state: PolicyState
    config: PolicyConfig
    plan: Plan


@dataclass(frozen=True, slots=True)
class Record:
    """`body` is compressed. `is_whole`: it can be read without another record. `offers` is the body of what was on
    offer, `offers_sha256` its name."""

    body: bytes
    is_whole: bool
    offers: bytes
    offers_sha256: str


class Recorder:
    """Makes the records of one process's decisions, in their order.

    A record of differences is worth nothing without the whole one before it: call `forget` when a record was not
    stored, and the next one is whole.
    """

    def __init__(self) -> None:
        self._base: dict[str, Any] | None = None
        self._base_items: dict[str, dict[str, Any]] = {}
        self._base_same: dict[str, set[int]] = {}  # identities of these items
        self._base_size = 0
        self._deltas = 0
        self._offers: tuple[tuple[Offer, ...], bytes, str] | None = None

    def forget(self) -> None:
        """The next record is whole."""
        self._base = None

    def record(self, seen: RecordedDecision) -> Record:
        """The record of one decision."""
        offers, name = self._record_offers(seen.snapshot.offers)
        rest = _rest(seen)
        if self._base is not None and self._deltas < MOST_DELTAS:
            body = _packed(self._delta(seen, rest, self._base))
            self._deltas = MOST_DELTAS if len(body) > _LARGE_SHARE * self._base_size else self._deltas + 1
            return Record(body, False, offers, name)
        items = {part: _by_id(seen, part) for part in _KEYED}
        views = {part: {key: codec.encode(item) for key, item in items[part].items()} for part in _KEYED}
        body = _packed({"format": FORMAT, **rest, **views})
        self._base, self._base_items = {**rest, **views}, items
        self._base_same = {part: set(map(id, items[part].values())) for part in _KEYED}
        self._base_size, self._deltas = len(body), 0
        return Record(body, True, offers, name)

    def _record_offers(self, offers: tuple[Offer, ...]) -> tuple[bytes, str]:
        if self._offers is None or self._offers[0] != offers:
            body = _packed(codec.encode(offers))
            self._offers = offers, body, hashlib.sha256(body).hexdigest()
        return self._offers[1:]

    def _delta(self, seen: RecordedDecision, rest: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
        delta = {name: value for name, value in rest.items() if base[name] != value}
        gone: dict[str, list[str]] = {}
        for part, name in _KEYED.items():
            before, items = self._base_items[part], _items(seen, part)
            same = self._base_same[part]  # most of a hundred thousand are the same objects
            others = [item for item in items if id(item) not in same]
            news = {
                key: _changed(base[part].get(key), codec.encode(item))
                for item in others
                if before.get(key := getattr(item, name)) != item
            }
            if news:
                delta[part] = news
            if lost := sorted(before.keys() - set(map(attrgetter(name), items))):
                gone[part] = lost
        return {"format": FORMAT, "gone": gone, **delta}


def read_record(body: bytes, base: bytes | None, offers: bytes) -> RecordedDecision:
    """What was recorded. `base`: the body of the whole record that this one differs from, None for a whole one.

    Raises InvalidInput where it was recorded by another release, or is damaged.
    """
    content = _unpacked(body)
    if base is not None:
        content = _applied(_unpacked(base), content)
    items = {part: [content[part][key] for key in sorted(content[part])] for part in _KEYED}
    waiting = items.pop(_WAITING)
    others = {name: content[name] for name in _others() if name in content}  # one of an earlier release has fewer
    return RecordedDecision(
        snapshot=codec.decode(Snapshot, {**others, **items, _OFFERS: _loaded(offers)}),
        state=codec.decode(PolicyState, content["state"]),
        config=codec.decode(PolicyConfig, content["config"]),
        plan=codec.decode(Plan, {**content["plan"], _WAITING: waiting}),
    )


def _others() -> list[str]:
    """The parts of a snapshot that are told again as a whole when they change."""
    return [one.name for one in fields(Snapshot) if one.name != _OFFERS and one.name not in _KEYED]


def _rest(seen: RecordedDecision) -> dict[str, Any]:
    told = {name: codec.encode(getattr(seen.snapshot, name)) for name in _others()}
    plan = codec.encode(replace(seen.plan, waiting=()))
    return {**told, "plan": plan, "state": codec.encode(seen.state), "config": codec.encode(seen.config)}


def _items(seen: RecordedDecision, part: str) -> Sequence[Any]:
    items: Sequence[Any] = seen.plan.waiting if part == _WAITING else getattr(seen.snapshot, part)
    return items


def _by_id(seen: RecordedDecision, part: str) -> dict[str, Any]:
    return {getattr(item, _KEYED[part]): item for item in _items(seen, part)}


def _changed(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """The fields that are different, or all of a view that was not there."""
    if before is None:
        return now
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def _applied(base: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    whole = {**base, **{name: value for name, value in delta.items() if name not in _KEYED and name != "gone"}}
    for part in _KEYED:
        views: _Views = dict(base[part])
        for key in delta["gone"].get(part, ()):
            views.pop(key, None)
        for key, news in delta.get(part, {}).items():
            views[key] = {**views.get(key, {}), **news}
        whole[part] = views
    return whole


def _packed(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return zlib.compress(text.encode(), _LEVEL)


def _unpacked(body: bytes) -> dict[str, Any]:
    content = _loaded(body)
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise InvalidInput(f"it was recorded in format {found}, and this release reads format {FORMAT}")
    return dict(content)


def _loaded(body: bytes) -> Any:
    try:
        return json.loads(zlib.decompress(body))
    except (zlib.error, ValueError) as error:
        raise InvalidInput(f"its record is damaged: {error}") from error
