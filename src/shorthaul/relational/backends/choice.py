"""Which backend runs a layer.

=============  ==========================  =====================================================
asked for      tensors on a CPU            tensors on a GPU (CUDA)
=============  ==========================  =====================================================
`auto`         `cpp`; `reference` without  `triton`; `reference` where Triton cannot run
               a compiler                  or SHORTHAUL_KERNELS is `torch`
`cpp`          `cpp`                       refused
`triton`       `triton` if its interpreter `triton`
               is on, else refused
`reference`    `reference`                 `reference`
=============  ==========================  =====================================================
"""

from __future__ import annotations

import os

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit import can_use_kernels
from shorthaul.jit.launching.triton_at_hand import require_triton, why_no_triton
from shorthaul.settings import settings

BACKENDS = ("auto", "cpp", "triton", "reference")


def choose_backend(wanted: str, device: torch.device) -> str:
    """`cpp`, `triton` or `reference`, by the table above."""
    if wanted not in BACKENDS:
        raise LayerArgumentError(
            f"there is no backend `{wanted}`", f"there are {', '.join(BACKENDS)}"
        )
    if wanted == "reference":
        return wanted
    if device.type == "cpu":
        if wanted == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
            raise LayerArgumentError(
                "the Triton backend was asked for, and the tensors are on a CPU",
                "move them to a GPU, or set TRITON_INTERPRET=1 before Python starts",
            )
        if wanted == "auto":
            return "cpp" if can_use_kernels("relational") else "reference"
        return wanted
    if wanted == "cpp":
        raise LayerArgumentError(
            f"the C++ backend was asked for, and the tensors are on {device}",
            "move them with .cpu(), or leave the backend at auto",
        )
    if wanted == "triton":
        require_triton("the Triton backend of a relational layer")
        return wanted
    return "triton" if _can_use_triton() else "reference"


def _can_use_triton() -> bool:
    if settings.kernels == "torch":
        note_fallback("relational", "plain PyTorch", "SHORTHAUL_KERNELS is torch")
        return False
    reason = why_no_triton()
    if reason is not None:
        note_fallback("relational", "plain PyTorch", reason)
    return reason is None
