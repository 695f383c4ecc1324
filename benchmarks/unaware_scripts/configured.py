"""A command that a file of configuration drives, as Axolotl's is: it starts a process of its own that trains."""

import json
import subprocess
import sys
from pathlib import Path

if len(sys.argv) > 1:
    from trainer import train

    train(**json.loads(Path(sys.argv[1]).read_text()))
else:
    Path("config.json").write_text(
        json.dumps({"optim": "adamw_torch", "lr_scheduler_type": "cosine", "warmup_steps": 5})
    )
    sys.exit(subprocess.call([sys.executable, __file__, "config.json"]))
