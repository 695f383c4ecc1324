"""The built-in recipe: fine-tuning without code of one's own. Beside the data, a job of it is nothing but parameters.

`settings.py` is what may be chosen. `reading.py` and `hub_rows.py` read rows, `formats.py`, `rows.py` and `messages.py`
check them, `splitting.py` holds some out, `looking.py` reads them as the model will, `packing.py` makes the bundle and
the template. `chat_template.py`, `chat.py`, `encoding.py`, `encoded.py` and `lengths.py` make tokens of rows, and
`travelling.py` sends these along: as `settings.py`, they run on machines, too, and need the standard library alone. The
training itself is `workers/trainer`, which every machine has from its agent.
"""

from __future__ import annotations
