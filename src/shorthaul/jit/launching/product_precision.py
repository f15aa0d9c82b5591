"""How exactly generated kernels multiply float32: as exactly as the user wants of PyTorch's own products."""

import torch


def choose_product_precision(dtype: torch.dtype) -> str:
    """What `tl.dot` is told of its inputs: "tf32", which rounds float32 to ten bits, or "ieee".

    `torch.set_float32_matmul_precision("high")` (or `"medium"`) allows TF32, and so does
    `torch.backends.cuda.matmul.fp32_precision = "tf32"`. Other dtypes are never rounded.

    >>> choose_product_precision(torch.float16)
    'ieee'
    """
    if dtype is not torch.float32:
        return "ieee"
    # Asked first where it exists: the older question raises when only the newer setting was made.
    asked = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if asked is None:
        asked = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return "tf32" if asked == "tf32" else "ieee"
