"""How many processes a command line starts, whatever GPUs there are."""

from __future__ import annotations

import re
from collections.abc import Sequence

# torchrun and torch.distributed.launch; accelerate launch; deepspeed
_COUNTS = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus)(?:=(?P<count>.*))?")
_SCRIPT = re.compile(r".+\.py")


def fixed_processes(command: Sequence[str]) -> str | None:
    """The option that fixes their number, as it is written; None where the launcher counts GPUs. What comes behind the
    script is the script's own."""
    for place, word in enumerate(command):
        if _SCRIPT.fullmatch(word):
            return None
        found = _COUNTS.fullmatch(word)
        if found is None:
            continue
        count = found["count"] if found["count"] is not None else "".join(command[place + 1 : place + 2])
        if count.isascii() and count.isdigit():
            return word if found["count"] is not None else f"{word} {count}"
    return None
