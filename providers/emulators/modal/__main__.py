"""python -m providers.emulators.modal: see `providers.emulators.serving`.

The key that customers present is `<token id>:<token secret>`.
"""

import sys

from providers.emulators.modal.emulation import EMULATION
from providers.emulators.serving import run

sys.exit(run(EMULATION))
