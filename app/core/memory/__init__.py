"""How much GPU memory a training step takes, predicted from the shape of the model and the configuration.

`estimate` answers for one configuration (`fit`), `peak_of` gives the phases behind it (`predict`), `MODELS` has the
shapes of common models (`catalogue`), `architecture_of` reads a `config.json` (`architecture`). How: the steps of one
layer are run once on a tape that knows sizes only (`tape`, `ops`, `layers`) and become linear forms (`program`).
"""

from app.core.memory.architecture import Architecture, architecture_of
from app.core.memory.catalogue import MODELS, model_named
from app.core.memory.fit import Estimate, Range, Verdict, estimate, verdict
from app.core.memory.predict import Peak, peak_of
from app.core.memory.semantics import DEFAULT, PROFILES, Semantics, profile_named
from app.core.memory.training import Training

__all__ = [
    "DEFAULT",
    "MODELS",
    "PROFILES",
    "Architecture",
    "Estimate",
    "Peak",
    "Range",
    "Semantics",
    "Training",
    "Verdict",
    "architecture_of",
    "estimate",
    "model_named",
    "peak_of",
    "profile_named",
    "verdict",
]
