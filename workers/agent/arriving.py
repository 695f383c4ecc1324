"""What is stored of a checkpoint that is still being written elsewhere, fetched into its place by a run that stands by.

The checkpoint that is committed in the end says what is in it. What was fetched for another one is left aside.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from workers.agent.errors import AgentError
from workers.agent.fetching import Fetcher, LocalPieces, PieceTarget, Staged, create, fetch_pieces
from workers.agent.pieces import Span

_AT_ONCE = 64  # pieces in one request for their URLs; what came meanwhile is in the next
Spot = Tuple[str, int, Span]  # path, offset, and what belongs there


class Arriving:
    """From `start` until `finish`. `folder` is the agent's own: user code cannot write there."""

    def __init__(self, link: Fetcher, folder: Path, shelf: LocalPieces) -> None:
        self._link = link
        self._folder = folder
        self._shelf = shelf
        self._staged = Staged(folder)
        self._files: Dict[str, int] = {}  # sizes in bytes
        self._done: Set[Spot] = set()
        self._changed = threading.Condition()  # guards the next three
        self._told: Sequence[Mapping[str, Any]] = ()
        self._is_news = False
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="arriving", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, spans: Sequence[Mapping[str, Any]]) -> None:
        """All that is stored by now."""
        with self._changed:
            self._told, self._is_news = spans, True
            self._changed.notify_all()

    def finish(self) -> Staged:
        """Return when what is under way is here: the rest is for whoever knows the whole checkpoint."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()
        return self._staged

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_news or self._is_over)
                    if self._is_over:
                        return
                    told, self._is_news = self._told, False
                if self._take(told):
                    self._look_again(told)
        except (AgentError, OSError):
            return  # nothing is lost but time

    def _look_again(self, told: Sequence[Mapping[str, Any]]) -> None:
        """There may be more of it, unless something newer was told."""
        with self._changed:
            if self._told is told:
                self._is_news = True

    def _take(self, told: Sequence[Mapping[str, Any]]) -> bool:
        """Fetch some of what is new; whether there was any."""
        sizes = {str(one["path"]): int(one["file_bytes"]) for one in told}
        new = [spot for spot in map(_spot, told) if spot not in self._done][:_AT_ONCE]
        places: Dict[str, List[PieceTarget]] = {}
        for path, offset, span in new:
            if self._files.get(path) != sizes[path]:
                create(self._folder, path, sizes[path])
                self._files[path] = sizes[path]
                self._staged.add_file(path, sizes[path])
            places.setdefault(span.sha256, []).append(PieceTarget(self._folder / path, offset, span.start, span.length))
        if new:
            fetch_pieces(self._link, {span.sha256: span.size_bytes for _, _, span in new}, places, self._shelf)
        for path, offset, span in new:
            self._staged.add(path, offset, span)
            self._done.add((path, offset, span))
        return bool(new)


def _spot(told: Mapping[str, Any]) -> Spot:
    span = Span(str(told["sha256"]), int(told["size_bytes"]), int(told["start"]), int(told["length"]))
    return str(told["path"]), int(told["offset"]), span
