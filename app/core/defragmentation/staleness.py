"""Which releases of a plan may still be executed."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.defragmentation.model import Defragmentation, NodeRelease


def still_valid(
    plan: Defragmentation, task_versions: Mapping[str, int], node_versions: Mapping[str, int]
) -> tuple[NodeRelease, ...]:
    """The releases of which no row has changed, and which need no move of one that is dropped.

    A release is dropped whole when one of its rows has another version or is gone, or when it touches a node that a
    dropped release before it would have touched: it may have counted on the room that this one was to leave.
    """
    kept, spoiled = [], set[str]()
    for release in plan.releases:
        touched = {release.node_id} | {end for move in release.moves for end in (move.source_id, move.target_id)}
        is_current = all(
            task_versions.get(move.task_id) == move.task_version
            and node_versions.get(move.source_id) == move.source_version
            and node_versions.get(move.target_id) == move.target_version
            for move in release.moves
        )
        if is_current and not touched & spoiled:
            kept.append(release)
        else:
            spoiled |= touched
    return tuple(kept)
