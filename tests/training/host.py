"""The program of `scripts.Host`: imports once (what its arguments name, too), then one fork per request line; answers
pid, then exit code."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback

import peft  # noqa: F401 - imported here so that every child has it at once
import torch
import transformers
from transformers import LlamaForCausalLM, Trainer  # noqa: F401 - transformers loads its parts when they are named


def run(request: dict[str, object]) -> int:
    """In the child: become the script."""
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    log = os.open("output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        runpy.run_path(str(request["script"]), run_name="__main__")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:  # as the interpreter does at its outermost frame
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
