"""Run drawn layers in Triton's interpreter against plain PyTorch; prints one JSON line per case.

A program of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch

from tests.relational.drawn_checks import check_kernels, compile_case, draw_case


def main(count: int, first: int) -> None:
    warnings.simplefilter("ignore")  # NumPy's, of the padding that Triton's interpreter computes on
    torch.set_num_threads(1)
    for seed in range(first, first + count):
        dtype = torch.float32 if seed % 3 == 1 else torch.float64
        case = draw_case(seed, 8, dtype)
        if case is None:
            continue
        problem = ""
        try:
            check_kernels(case, compile_case(case, dtype, backend="triton"))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}\n{case}"
        print(json.dumps({"case": f"drawn layer {seed}", "problem": problem}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
