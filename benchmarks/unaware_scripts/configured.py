"""A command that a file of configuration drives, as Axolotl's is: it starts a process of its own that trains."""

import json
import subprocess
import sys
from pathlib import Path

from trainer import train

if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(**json.loads(Path(sys.argv[2]).read_text()))
    else:
        sys.exit(subprocess.call([sys.executable, __file__, "train", sys.argv[1]]))
