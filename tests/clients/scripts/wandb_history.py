"""Prints what a run of W&B has written into its file: of each logged step, the values. Its format is LevelDB's log, of
messages that the library knows; the library itself has no reader any more."""

import json
import sys
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER, FILE_HEADER = 32768, 7, 7
data = Path(sys.argv[1]).read_bytes()
at, part = FILE_HEADER, b""
while at + HEADER <= len(data):
    left = BLOCK - at % BLOCK
    if left < HEADER:
        at += left
        continue
    length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
    part += data[at + HEADER : at + HEADER + length]
    at += HEADER + length
    if kind in (1, 4):  # whole, or its last part
        record = Record.FromString(part)
        part = b""
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            print(json.dumps({one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in items}))
