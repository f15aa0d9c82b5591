"""shorthaul inside other people's training loops: one file per host.

Each host is an optional extra, so what needs it is imported at its first use.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from shorthaul.integrations.accelerate import PreparedOffload, offload_prepared
    from shorthaul.integrations.hugging_face import ShorthaulCallback
    from shorthaul.integrations.lightning import LightningCallback

__all__ = ["LightningCallback", "PreparedOffload", "ShorthaulCallback", "offload_prepared"]

_HOSTS = {
    "LightningCallback": "shorthaul.integrations.lightning",
    "PreparedOffload": "shorthaul.integrations.accelerate",
    "ShorthaulCallback": "shorthaul.integrations.hugging_face",
    "offload_prepared": "shorthaul.integrations.accelerate",
}

if not typing.TYPE_CHECKING:  # checkers and editors read the imports above instead

    def __getattr__(name: str) -> object:
        if name not in _HOSTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOSTS[name]), name)
