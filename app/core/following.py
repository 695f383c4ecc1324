"""A board that goes on from one snapshot to the next. Pure.

What is the same object in both costs a look; what has changed costs what it costs the board to replace it. The board
equals the one that is built from the snapshot alone, so a decision on it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from app.core.board import Board
from app.core.model.snapshot import Snapshot

View = TypeVar("View")


class KeptBoard:
    """The board of one decider, from one snapshot to the next."""

    def __init__(self) -> None:
        self._board: Board | None = None

    def of(self, snapshot: Snapshot) -> Board:
        """The board of this snapshot; the one that was returned last is it now, or is of no use any more."""
        board, self._board = self._board, None
        if board is None:
            board = Board.of(snapshot)
        else:
            follow(board, snapshot)
        self._board = board
        return board


def follow(board: Board, snapshot: Snapshot) -> None:
    """Make the board that of the snapshot. When it raises, the board is of no use any more."""
    board.now_ms = snapshot.now_ms
    of_market = (snapshot.offers, snapshot.traits, snapshot.closed, snapshot.images)
    if of_market != (board.offers, board.traits, board.closed, board.images):
        board.set_offers(*of_market)
    board.gains, board.gains_together = snapshot.gains, snapshot.gains_together
    board.no_ahead, board.queue_means = frozenset(snapshot.no_ahead), snapshot.queue_means
    _follow_merges(board, snapshot)
    for run_id in board.runs.keys() - {run.run_id for run in snapshot.runs}:
        board.drop_run(run_id)
    _put(snapshot.nodes, [board.nodes.get(node.node_id) for node in snapshot.nodes], board.put_node)
    if len(board.nodes) > len(snapshot.nodes):
        for node_id in board.nodes.keys() - {node.node_id for node in snapshot.nodes}:
            board.drop_node(node_id)
    same = set(map(id, board.jobs.values()))  # by far the most, and there may be a hundred thousand
    others = [job for job in snapshot.jobs if id(job) not in same]
    _put(others, [board.jobs.get(job.job_id) for job in others], board.put_job)
    if len(board.jobs) > len(snapshot.jobs):
        for job_id in board.jobs.keys() - set(map(attrgetter("job_id"), snapshot.jobs)):
            board.drop_job(job_id)
    _put(snapshot.runs, [board.runs.get(run.run_id) for run in snapshot.runs], board.put_run)


def _follow_merges(board: Board, snapshot: Snapshot) -> None:
    """Both jobs of a merge are placed by it, so that one that changes ends and begins anew."""
    now = {merge.lead_id: merge for merge in snapshot.merges}
    for lead_id in [lead_id for lead_id, merge in board.merges.items() if now.get(lead_id) != merge]:
        board.drop_merge(lead_id)
    for lead_id, merge in now.items():
        if lead_id not in board.merges:
            board.put_merge(merge)


def _put(views: Sequence[View], known: Sequence[View | None], put: Callable[[View], None]) -> None:
    """What has come or changed."""
    for view, was in zip(views, known, strict=True):
        if was is not view and was != view:
            put(view)
