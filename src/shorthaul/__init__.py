"""shorthaul: shorter journeys for the bytes of PyTorch training.

The catalogue: every public name, and nothing else.
"""

from shorthaul import errors, jit
from shorthaul.explain import explain
from shorthaul.meter import Meter, meter
from shorthaul.settings import settings

__version__ = "0.1.0"

__all__ = ["Meter", "__version__", "errors", "explain", "jit", "meter", "settings"]
