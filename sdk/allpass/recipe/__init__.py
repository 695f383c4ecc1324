"""The built-in recipe: fine-tuning without code of one's own. Beside the data, a job of it is nothing but parameters.

`settings.py` is what may be chosen; it is read on the machine too, and needs the standard library alone. `rows.py`,
`reading.py` and `splitting.py` check data and hold some out before anything is sent, `packing.py` makes the bundle and
the template. The training itself is `workers/trainer`, which every machine has from its agent.
"""

from __future__ import annotations
