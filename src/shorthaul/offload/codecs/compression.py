"""Fewer bytes for the disk: exact codecs, and two that lose something and say how much.

| name   | exact | what it does                                                                     |
| ------ | ----- | -------------------------------------------------------------------------------- |
| `mask` | yes   | packs tensors of two values (dropout masks, booleans) to one bit per element      |
| `lz4`  | yes   | the same, and everything else by bit-shuffle and lz4, by `blosc2`                 |
| `zstd` | yes   | the same with zstd at level 1: smaller, and half as fast                          |
| `int8` | no    | floating-point rows as 8-bit integers with a scale per row                        |
| `fp8`  | no    | floating-point tensors as `float8_e4m3fn` with one scale                          |

The lossy ones are used only where they are asked for by name. They leave exact what is not floating
point, what is not finite and rows shorter than 16 values, such as the statistics of norms.

>>> mask = (torch.arange(4096) % 3 == 0).float() * 1.25
>>> codec = choose_codec("mask")
>>> packed = codec.compress(mask)
>>> back = torch.empty_like(mask)
>>> codec.decompress(packed, back)
>>> packed.numel(), torch.equal(back, mask)
(538, True)

Packed bytes carry a header with their size and a checksum: what is damaged, or belongs to another
tensor, is a `CodecError` and never a wrong tensor.
"""

from __future__ import annotations

import importlib
import math
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from shorthaul.errors import CodecError, MissingExtraError

CODECS = ("mask", "lz4", "zstd", "int8", "fp8")

_MAGIC = b"SHZ1"
_HEADER = struct.Struct("<4sBBIQ")  # magic, mode, bytes per number, checksum, bytes unpacked
_PLAIN, _MASK, _LZ4, _ZSTD, _INT8, _FP8 = range(6)
_PIECE_BYTES = 1 << 30  # blosc2 takes less than two GiB at a time
_SHORTEST_LOSSY_ROW = 16
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Buffer = bytes | memoryview


class Codec(Protocol):
    """Turns tensors into fewer bytes and back."""

    @property
    def name(self) -> str:
        """The name that `choose_codec` knows it by."""

    @property
    def is_lossless(self) -> bool:
        """Whether what comes back is equal to the last bit."""

    def compress(self, source: torch.Tensor) -> torch.Tensor:
        """The packed bytes of a CPU tensor, as flat `uint8`."""

    def decompress(self, packed: torch.Tensor, out: torch.Tensor) -> None:
        """Fill `out`, a contiguous tensor of the dtype and shape that was packed."""


def choose_codec(name: str) -> Codec:
    """The codec of this name; `MissingExtraError` where its package is not installed."""
    if name == "mask":
        return LosslessCodec("mask", _PLAIN)
    if name == "lz4":
        return LosslessCodec("lz4", _LZ4)
    if name == "zstd":
        return LosslessCodec("zstd", _ZSTD)
    if name in ("int8", "fp8"):
        return LossyCodec(name)
    raise CodecError(f"there is no codec {name!r}; there are {', '.join(CODECS)}.")


def worth_compressing(
    ratio: float,
    codec_bytes_per_second: float,
    disk_bytes_per_second: float,
    *,
    has_free_core: bool,
) -> bool:
    """Whether compressing makes a disk take more bytes per second than it does plainly.

    The pipeline is as fast as its slower part: the codec, or the disk that sees `ratio` times fewer
    bytes. Without a free core the codec takes its time from the model.
    """
    pipeline = min(codec_bytes_per_second, ratio * disk_bytes_per_second)
    return has_free_core and pipeline > disk_bytes_per_second


@dataclass(frozen=True)
class CodecRates:
    """What a codec did with a sample: one thread, on this machine, now."""

    ratio: float  # bytes before over bytes after
    compress_bytes_per_second: float  # of unpacked bytes
    decompress_bytes_per_second: float


def measure_codec(codec: Codec, sample: torch.Tensor) -> CodecRates:
    """Compress and decompress `sample` once, after a first time that is not counted."""
    back = torch.empty_like(sample, memory_format=torch.contiguous_format)
    codec.decompress(codec.compress(sample), back)
    started = time.perf_counter()
    packed = codec.compress(sample)
    compressed = time.perf_counter()
    codec.decompress(packed, back)
    done = time.perf_counter()
    size_bytes = back.numel() * back.element_size()
    return CodecRates(
        size_bytes / packed.numel(),
        size_bytes / (compressed - started),
        size_bytes / (done - compressed),
    )


@dataclass(frozen=True)
class Distortion:
    """How far what came back is from what went in."""

    largest: float  # of the absolute differences
    relative: float  # norm of the difference over the norm of the source


def measure_distortion(codec: Codec, source: torch.Tensor) -> Distortion:
    """What packing and unpacking `source` does to it; nothing at all, for an exact codec."""
    back = torch.empty_like(source, memory_format=torch.contiguous_format)
    codec.decompress(codec.compress(source), back)
    wide = torch.complex128 if source.is_complex() else torch.float64
    before, after = source.to(wide), back.to(wide)
    error = torch.where(
        before == after, 0, after - before
    )  # infinities that are kept differ by nan
    if not source.numel():
        return Distortion(0.0, 0.0)
    norm = float(torch.linalg.vector_norm(before))
    error_norm = float(torch.linalg.vector_norm(error))
    relative = 0.0 if error_norm == 0 else math.inf if norm == 0 else error_norm / norm
    return Distortion(float(error.abs().max()), relative)


class LosslessCodec:
    """Masks to bits, and everything else through bit-shuffle and a compressor, or as it is."""

    is_lossless = True

    def __init__(self, name: str, mode: int) -> None:
        self.name, self._mode = name, mode
        if mode != _PLAIN:
            _import_blosc2()  # a missing package is told now, not in the middle of a step

    def compress(self, source: torch.Tensor) -> torch.Tensor:
        """The packed bytes of a CPU tensor, as flat `uint8`."""
        content, element_bytes = _flat_bytes(source)
        mask = _pack_mask(content, element_bytes)
        if mask is not None:
            return _assemble(_MASK, element_bytes, content.numel(), mask)
        if self._mode == _PLAIN:
            return _assemble(_PLAIN, element_bytes, content.numel(), [content.numpy().data])
        pieces = _pack_pieces(content, element_bytes, self._mode)
        return _assemble(self._mode, element_bytes, content.numel(), pieces)

    def decompress(self, packed: torch.Tensor, out: torch.Tensor) -> None:
        """Fill `out`, a contiguous tensor of the dtype and shape that was packed."""
        _unpack(packed, out)


class LossyCodec:
    """Floating-point tensors in 8 bits per value; what must not lose anything stays exact."""

    is_lossless = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._exact = LosslessCodec("mask", _PLAIN)

    def compress(self, source: torch.Tensor) -> torch.Tensor:
        """The packed bytes of a CPU tensor, as flat `uint8`."""
        if not self._can_lose(source) or _pack_mask(*_flat_bytes(source)) is not None:
            return self._exact.compress(source)
        element_bytes = source.element_size()
        size_bytes = source.numel() * element_bytes
        values = source.detach().reshape(-1, source.shape[-1])
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        if self.name == "fp8":
            scale = values.abs().amax() / torch.finfo(torch.float8_e4m3fn).max
            if scale == 0:  # the largest value is among the smallest that there are
                return self._exact.compress(source)
            small = (values / scale).to(torch.float8_e4m3fn).view(torch.uint8)
            body: list[Buffer] = [struct.pack("<d", float(scale)), small.reshape(-1).numpy().data]
            return _assemble(_FP8, element_bytes, size_bytes, body)
        scales = values.abs().amax(dim=1, keepdim=True) / 127
        integers = torch.where(scales > 0, values / scales, 0).round().to(torch.int8)
        body = [
            struct.pack("<Q", len(values)),
            scales.to(torch.float64).reshape(-1).view(torch.uint8).numpy().data,
            integers.reshape(-1).view(torch.uint8).numpy().data,
        ]
        return _assemble(_INT8, element_bytes, size_bytes, body)

    def decompress(self, packed: torch.Tensor, out: torch.Tensor) -> None:
        """Fill `out`, a contiguous tensor of the dtype and shape that was packed."""
        _unpack(packed, out)

    @staticmethod
    def _can_lose(source: torch.Tensor) -> bool:
        return (
            source.is_floating_point()
            and source.element_size() > 1
            and source.dim() > 0
            and source.shape[-1] >= _SHORTEST_LOSSY_ROW
            and bool(source.isfinite().all())
            and bool(source.any())
        )


# Packed bytes: a header, then a body that depends on the mode


def _assemble(
    mode: int, element_bytes: int, size_bytes: int, body: Sequence[Buffer]
) -> torch.Tensor:
    packed = bytearray().join([bytes(_HEADER.size), *body])
    _HEADER.pack_into(packed, 0, _MAGIC, mode, element_bytes, 0, size_bytes)
    checksum = zlib.crc32(packed)
    _HEADER.pack_into(packed, 0, _MAGIC, mode, element_bytes, checksum, size_bytes)
    return torch.frombuffer(packed, dtype=torch.uint8)


def _unpack(packed: torch.Tensor, out: torch.Tensor) -> None:
    content = packed.numpy()
    if content.nbytes < _HEADER.size:
        raise CodecError(
            f"packed bytes are damaged: {content.nbytes} bytes are fewer than a header has."
        )
    magic, mode, element_bytes, checksum, size_bytes = _HEADER.unpack_from(content.data)
    unsigned = _HEADER.pack(magic, mode, element_bytes, 0, size_bytes)
    body = content[_HEADER.size :]
    if magic != _MAGIC or zlib.crc32(body.data, zlib.crc32(unsigned)) != checksum:
        raise CodecError("packed bytes are damaged: their checksum does not agree.")
    if not out.is_contiguous() or not out.is_cpu:
        raise CodecError("expected a contiguous CPU tensor to unpack into.")
    out_bytes, out_element_bytes = _flat_bytes(out)
    is_same_kind = out.is_floating_point() and out_element_bytes == element_bytes
    if out_bytes.numel() != size_bytes or (mode in (_INT8, _FP8) and not is_same_kind):
        raise CodecError(
            f"these packed bytes make a tensor of {size_bytes} bytes with {element_bytes}-byte "
            f"numbers, got {out.dtype} of {out_bytes.numel()} bytes to unpack into."
        )
    try:
        _UNPACKERS[mode](body, element_bytes, out, out_bytes)
    except (struct.error, ValueError, IndexError, RuntimeError, KeyError) as error:
        # The checksum agrees, so this was packed by something else than the code above.
        raise CodecError(f"packed bytes cannot be unpacked: {error}") from error


def _flat_bytes(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The tensor as flat bytes, and the bytes of one number (of one component, when complex)."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise CodecError(f"expected a dense CPU tensor, got {tensor.layout} on {tensor.device}.")
    element_bytes = tensor.element_size() // (2 if tensor.is_complex() else 1)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8), element_bytes


def _unpack_plain(
    body: npt.NDArray[np.uint8], _element_bytes: int, _out: torch.Tensor, out_bytes: torch.Tensor
) -> None:
    out_bytes.numpy()[:] = body


# Two values in one bit


def _pack_mask(content: torch.Tensor, element_bytes: int) -> list[Buffer] | None:
    """Both values and a bit per number; `None` when there are more than two.

    Values are compared by their bits, so that -0.0 and every NaN come back as they were.
    """
    numbers = content.view(_INTEGERS[element_bytes])
    if numbers.numel() < 8:  # two values and their bits would take more than the numbers
        return None
    if len(np.unique(numbers[:256].numpy())) > 2:  # the usual answer, in microseconds
        return None
    first = numbers[0]
    is_second = numbers != first
    second = numbers[is_second.to(torch.uint8).argmax()]
    if not bool(((numbers == second) | ~is_second).all()):
        return None
    values = torch.stack((first, second)).view(torch.uint8)
    return [values.numpy().data, np.packbits(is_second.numpy(), bitorder="little").data]


def _unpack_mask(
    body: npt.NDArray[np.uint8], element_bytes: int, _out: torch.Tensor, out_bytes: torch.Tensor
) -> None:
    count = out_bytes.numel() // element_bytes
    split = 2 * element_bytes
    values = torch.from_numpy(body[:split].copy()).view(_INTEGERS[element_bytes]).tolist()
    bits = np.unpackbits(body[split:], count=count, bitorder="little")
    numbers = out_bytes.view(_INTEGERS[element_bytes])
    numbers.fill_(values[0]).masked_fill_(torch.from_numpy(bits).view(torch.bool), values[1])


# Bit-shuffle and a compressor, by blosc2


def _import_blosc2() -> Any:
    try:
        return importlib.import_module("blosc2")
    except ImportError as error:
        raise MissingExtraError("blosc2", "compress", "compressing activations") from error


def _pieces_of(content: torch.Tensor) -> list[torch.Tensor]:
    return [
        content[start : start + _PIECE_BYTES] for start in range(0, content.numel(), _PIECE_BYTES)
    ]


def _pack_pieces(content: torch.Tensor, element_bytes: int, mode: int) -> list[Buffer]:
    """The length of every packed piece, then the pieces."""
    blosc2 = _import_blosc2()
    pieces: list[Buffer] = []
    for piece in _pieces_of(content):
        plain = piece.numpy()
        packed: Buffer = blosc2.compress2(
            plain,
            codec=blosc2.Codec.LZ4 if mode == _LZ4 else blosc2.Codec.ZSTD,
            clevel=1,
            filters=[blosc2.Filter.BITSHUFFLE],
            filters_meta=[0],
            typesize=element_bytes,
            nthreads=1,
        )
        # Noise does not shrink: it is stored as it is, which its length tells.
        pieces.append(packed if len(packed) < len(plain) else plain.data)
    return [struct.pack(f"<{len(pieces)}I", *map(len, pieces)), *pieces]


def _unpack_pieces(
    body: npt.NDArray[np.uint8], _element_bytes: int, _out: torch.Tensor, out_bytes: torch.Tensor
) -> None:
    targets = _pieces_of(out_bytes)
    lengths = struct.unpack_from(f"<{len(targets)}I", body.data)
    position = 4 * len(targets)
    for target, length in zip(targets, lengths, strict=True):
        piece = body[position : position + length]
        position += length
        if length == target.numel():
            target.numpy()[:] = piece
            continue
        blosc2 = _import_blosc2()
        size_bytes, _, _ = blosc2.get_cbuffer_sizes(piece)
        if size_bytes != target.numel():
            raise ValueError(f"a piece has {size_bytes} bytes, expected {target.numel()}")
        blosc2.decompress2(piece, dst=target.numpy(), nthreads=1)


# Eight bits per value


def _unpack_int8(
    body: npt.NDArray[np.uint8], _element_bytes: int, out: torch.Tensor, _out_bytes: torch.Tensor
) -> None:
    (rows,) = struct.unpack_from("<Q", body.data)
    split = 8 + 8 * rows
    scales = torch.from_numpy(body[8:split].copy().view(np.float64)).reshape(rows, 1)
    integers = torch.from_numpy(body[split:].copy().view(np.int8)).reshape(rows, -1)
    wide = torch.promote_types(out.dtype, torch.float32)
    out.view(rows, -1).copy_(integers.to(wide) * scales.to(wide))


def _unpack_fp8(
    body: npt.NDArray[np.uint8], _element_bytes: int, out: torch.Tensor, _out_bytes: torch.Tensor
) -> None:
    (scale,) = struct.unpack_from("<d", body.data)
    small = torch.from_numpy(body[8:].copy()).view(torch.float8_e4m3fn)
    wide = torch.promote_types(out.dtype, torch.float32)
    out.view(-1).copy_(small.to(wide) * scale)


_UNPACKERS: Mapping[int, Callable[..., None]] = {
    _PLAIN: _unpack_plain,
    _MASK: _unpack_mask,
    _LZ4: _unpack_pieces,
    _ZSTD: _unpack_pieces,
    _INT8: _unpack_int8,
    _FP8: _unpack_fp8,
}
