"""The built-in recipe's training, stopped or killed as a step is reported: parameters.json has the recipe's beside
`stop_at` and `dies_at`; the rows lie where ROWS says."""

import json
import os
import signal
import sys
from pathlib import Path

from allpass import training
from allpass.training.session import Session

place = Path(os.environ["ALLPASS_PARAMETERS_FILE"])
told = json.loads(place.read_text())
stop_at, dies_at = told.pop("stop_at", 0), told.pop("dies_at", 0)
place.write_text(json.dumps(told))


class StopsAt(Session):
    def report(self, step, **metrics):
        super().report(step, **metrics)
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if step == dies_at:
            import time

            time.sleep(float(os.environ["TOLD_S"]))  # so that what was told is sent: it dies hard
            os._exit(1)


training._session = StopsAt()
training._session.listen()
from workers.trainer import main  # noqa: E402

main.main(Path(os.environ["ROWS"]))
sys.exit(0)
