"""Would blosc2 compress activations as well and as fast as the codecs here?

Both shuffle bits and compress by LZ4 or Zstandard. A sample packs and unpacks 16 MiB of a GPT's activations; what
comes back is compared bit for bit. blosc2 is installed beside the other packages for this question alone
(`pip install blosc2`). Bytes are exact, times are of one thread and, for blosc2, of two as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_bits
from shorthaul.offload.codecs.compression import choose_codec

VALUES = 1 << 22
FILTERS = {"lz4": "LZ4", "zstd": "ZSTD"}


def make_activations(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What a layer of a GPT saves, by what it is."""
    torch.manual_seed(0)
    width = 1024
    x = torch.randn(VALUES // width, width)
    normed = nn.functional.layer_norm(x, (width,))
    hidden = normed @ (torch.randn(width, width) / width**0.5)
    mask = (torch.rand_like(hidden) > 0.1).float() / 0.9
    values = {
        "normalized rows": normed,
        "behind GELU": nn.functional.gelu(hidden),
        "behind ReLU": hidden.relu(),
        "dropout mask": mask,
        "behind dropout": hidden * mask,
    }
    return {name: each.detach().to(dtype).contiguous() for name, each in values.items()}


def ours(name: str, tensor: torch.Tensor, sizes: dict[str, float]) -> Callable[[], torch.Tensor]:
    """Pack and unpack by a codec of this library."""
    codec, back = choose_codec(name), torch.empty_like(tensor)

    def run() -> torch.Tensor:
        packed = codec.compress(tensor)
        sizes["packed_bytes"] = packed.numel()
        codec.decompress(packed, back)
        return back

    return run


def theirs(
    blosc2: Any, name: str, threads: int, tensor: torch.Tensor, sizes: dict[str, float]
) -> Callable[[], torch.Tensor]:
    """Pack and unpack by blosc2, from memory to memory."""
    back = torch.empty_like(tensor)
    # NumPy has no bfloat16; the bits are what counts.
    source, target = (each.view(torch.uint8).numpy().reshape(-1) for each in (tensor, back))
    packing = {
        "codec": getattr(blosc2.Codec, FILTERS[name]),
        "clevel": 1,
        "filters": [blosc2.Filter.BITSHUFFLE],
        "filters_meta": [0],
        "typesize": tensor.element_size(),
        "nthreads": threads,
    }
    unpacking = {"nthreads": threads}

    def run() -> torch.Tensor:
        packed = blosc2.compress2(source, **packing)
        sizes["packed_bytes"] = len(packed)
        blosc2.decompress2(packed, dst=target, **unpacking)
        return back

    return run


def measure(answer: Answer) -> None:
    try:
        import blosc2
    except ImportError as error:
        raise SystemExit("this question needs blosc2: pip install blosc2") from error
    torch.set_num_threads(1)
    answer.state(blosc2=blosc2.__version__, sample="16 MiB of float32, 8 of bfloat16; level 1")
    for dtype in (torch.float32, torch.bfloat16):
        for what, tensor in make_activations(dtype).items():
            sizes: dict[str, dict[str, float]] = {}

            def sized(arm: str) -> dict[str, float]:
                return sizes.setdefault(arm, {"plain_bytes": tensor.nbytes})  # noqa: B023

            arms = []
            for name in FILTERS:
                arms.append(Arm(name, ours(name, tensor, sized(name))))
                for threads in (1, 2):
                    arm = f"blosc2 {name}, {threads} thread{'s' if threads > 1 else ''}"
                    arms.append(Arm(arm, theirs(blosc2, name, threads, tensor, sized(arm))))
            case = f"{what}, {str(dtype).removeprefix('torch.')}"
            answer.compare(case, arms, baseline="lz4", same=same_bits, figures=sizes)


if __name__ == "__main__":
    answer_question(measure, rounds=5)
