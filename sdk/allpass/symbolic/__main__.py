"""Run by its path with any Python that has torch and transformers: JSON cases in, JSON answers out, one per line each.

An answer has `peaks`, or `error` in words with `fault` `case` (it cannot be) or `run` (torch could not).
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path


def _find_ourselves() -> None:
    """`allpass.symbolic` and nothing else of where it lies: other packages there are not this Python's."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    package = types.ModuleType("allpass")
    package.__path__ = [str(here.parent)]
    sys.modules["allpass"] = package


def _serve() -> None:
    import contextlib
    import gc

    from allpass.symbolic.case import Case

    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    with contextlib.redirect_stdout(sys.stderr):
        from allpass.symbolic import cuda

        cuda.install()
        from allpass.symbolic.step import measure

        gc.freeze()  # libraries stay: each case collects its own alone
        for line in sys.stdin:
            answer: "dict[str, object]"
            try:
                answer = {"peaks": measure(Case.from_json(json.loads(line)))}
            except ValueError as error:
                answer = {"error": str(error), "fault": "case"}
            except Exception as error:  # one case that torch cannot run must not end the others
                answer = {"error": f"{type(error).__name__}: {error}"[:2000], "fault": "run"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _find_ourselves()
    _serve()
