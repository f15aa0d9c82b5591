"""shorthaul: train PyTorch models with less memory and less data movement.

The catalog: every public name, and nothing else.
"""

import importlib
import typing

from shorthaul import errors
from shorthaul.explain import explain
from shorthaul.meter import Meter, meter
from shorthaul.settings import settings

if typing.TYPE_CHECKING:
    from shorthaul import (
        conv,
        datasets,
        distributed,
        graphs,
        integrations,
        jit,
        offload,
        relational,
        tensors,
    )
    from shorthaul.advice import Advice, advise, apply, fit
    from shorthaul.conv import (
        Conv1d,
        Conv2d,
        Conv3d,
        conv1d,
        conv2d,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
        replace_convs,
        warm_up,
    )
    from shorthaul.graphs import (
        LinkLoader,
        MiniBatchLoader,
        NegativeSampler,
        NeighborSampler,
        RelationalGraph,
    )
    from shorthaul.offload import offload_activations
    from shorthaul.tensors import (
        UnifiedTensor,
        enable_unified_device,
        open,
        save_features,
        unified,
        unified_empty,
        unified_zeros,
    )

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "LinkLoader",
    "Meter",
    "MiniBatchLoader",
    "NegativeSampler",
    "NeighborSampler",
    "RelationalGraph",
    "UnifiedTensor",
    "__version__",
    "advise",
    "apply",
    "conv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "datasets",
    "distributed",
    "enable_unified_device",
    "errors",
    "explain",
    "fit",
    "graphs",
    "integrations",
    "jit",
    "meter",
    "offload",
    "offload_activations",
    "open",
    "relational",
    "replace_convs",
    "save_features",
    "settings",
    "tensors",
    "unified",
    "unified_empty",
    "unified_zeros",
    "warm_up",
]

# Names that need torch, with the module each comes from. They are imported at their first use:
# torch takes two seconds, and `shorthaul --help` shall answer at once.
_NEEDS_TORCH = {
    "Advice": "shorthaul.advice",
    "advise": "shorthaul.advice",
    "apply": "shorthaul.advice",
    "fit": "shorthaul.advice",
    "Conv1d": "shorthaul.conv",
    "Conv2d": "shorthaul.conv",
    "Conv3d": "shorthaul.conv",
    "conv": "shorthaul.conv",
    "conv1d": "shorthaul.conv",
    "conv2d": "shorthaul.conv",
    "conv3d": "shorthaul.conv",
    "conv_transpose1d": "shorthaul.conv",
    "conv_transpose2d": "shorthaul.conv",
    "conv_transpose3d": "shorthaul.conv",
    "replace_convs": "shorthaul.conv",
    "warm_up": "shorthaul.conv",
    "datasets": "shorthaul.datasets",
    "distributed": "shorthaul.distributed",
    "LinkLoader": "shorthaul.graphs",
    "MiniBatchLoader": "shorthaul.graphs",
    "NegativeSampler": "shorthaul.graphs",
    "NeighborSampler": "shorthaul.graphs",
    "RelationalGraph": "shorthaul.graphs",
    "graphs": "shorthaul.graphs",
    "integrations": "shorthaul.integrations",
    "jit": "shorthaul.jit",
    "offload": "shorthaul.offload",
    "relational": "shorthaul.relational",
    "offload_activations": "shorthaul.offload",
    "tensors": "shorthaul.tensors",
    "UnifiedTensor": "shorthaul.tensors",
    "enable_unified_device": "shorthaul.tensors",
    "open": "shorthaul.tensors",
    "save_features": "shorthaul.tensors",
    "unified": "shorthaul.tensors",
    "unified_empty": "shorthaul.tensors",
    "unified_zeros": "shorthaul.tensors",
}

if not typing.TYPE_CHECKING:  # checkers and editors read the imports above instead

    def __getattr__(name: str) -> object:
        if name not in _NEEDS_TORCH:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(_NEEDS_TORCH[name])
        is_package = module.__name__ == f"{__name__}.{name}"
        found = globals()[name] = module if is_package else getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted(__all__)
