"""Everything comes back to the last bit, or as close as it was promised, or as a named error."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import CodecError, MissingExtraError
from shorthaul.offload.codecs import compression
from shorthaul.offload.codecs.compression import (
    CODECS,
    choose_codec,
    measure_codec,
    measure_distortion,
    worth_compressing,
)

HEADER_BYTES = 18
LOSSLESS = ("mask", "lz4", "zstd")
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def round_trip(name: str, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codec = choose_codec(name)
    packed = codec.compress(source)
    back = torch.full(source.shape, 1, dtype=torch.uint8).to(source.dtype)
    codec.decompress(packed, back)
    return back, packed


def draw_tensor(dtype: torch.dtype, kind: str, size: int, seed: int) -> torch.Tensor:
    """Activations, noise in every bit (NaN and infinities too), two values, or one."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(size, generator=generator) < 0.9
    if kind == "smooth":
        values = torch.nn.functional.gelu(torch.randn(size, generator=generator))
        return (values * 20).to(dtype)
    width = torch.empty(0, dtype=dtype).element_size()
    noise = torch.randint(0, 256, (size * width,), generator=generator, dtype=torch.uint8)
    noise = noise.view(dtype)
    if kind == "noise" or not size:
        return noise
    choice = torch.rand(size, generator=generator) < (0.9 if kind == "mask" else 2)
    return torch.where(choice, noise[0], noise[-1]) if width < 16 else noise


@settings(deadline=None)
@given(
    st.sampled_from(LOSSLESS),
    st.sampled_from(DTYPES),
    st.sampled_from(["smooth", "noise", "mask", "constant"]),
    st.sampled_from([0, 1, 2, 7, 8, 9, 255, 257, 4096, 5000, 40_000]),
    st.integers(0, 2**31),
)
def test_exact_codecs_are_exact_to_the_last_bit(
    name: str, dtype: torch.dtype, kind: str, size: int, seed: int
) -> None:
    if dtype is torch.float8_e4m3fn and kind in ("mask", "constant"):
        kind = "noise"  # torch.where has no such dtype
    source = draw_tensor(dtype, kind, size, seed)
    back, packed = round_trip(name, source)
    assert torch.equal(bits(back), bits(source))
    assert packed.dtype is torch.uint8
    assert (
        packed.numel() <= bits(source).numel() + HEADER_BYTES + 4
    )  # noise grows by its header only


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_tensors_of_many_pieces_are_exact_and_smaller(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "_PIECE_BYTES", 1 << 20)
    torch.manual_seed(0)
    source = torch.nn.functional.gelu(torch.randn(700_001))
    back, packed = round_trip(name, source)
    assert torch.equal(back, source)
    assert packed.numel() < 0.95 * source.numel() * 4


@pytest.mark.parametrize("name", CODECS)
def test_shapes_and_strides_do_not_matter(name: str) -> None:
    source = torch.arange(4 * 32, dtype=torch.int32).view(4, 32).t()  # not contiguous
    back, _ = round_trip(name, source)
    assert torch.equal(back, source)


def test_a_dropout_mask_takes_a_bit_per_value() -> None:
    torch.manual_seed(0)
    mask = torch.nn.functional.dropout(torch.ones(64, 1024), 0.1)
    for name in CODECS:
        back, packed = round_trip(name, mask)
        assert torch.equal(back, mask)
        assert packed.numel() == 64 * 1024 // 8 + HEADER_BYTES + 2 * 4


def test_a_boolean_takes_a_bit_and_signed_zeros_stay_signed() -> None:
    _, packed = round_trip("mask", torch.rand(8000) < 0.5)
    assert packed.numel() == 1000 + HEADER_BYTES + 2
    zeros = torch.tensor([0.0, -0.0] * 50)
    back, _ = round_trip("mask", zeros)
    assert torch.equal(bits(back), bits(zeros))


def test_a_third_value_at_the_very_end_is_seen() -> None:
    almost = torch.zeros(5000)
    almost[2000], almost[-1] = 1.0, 2.0
    for name in LOSSLESS:
        back, _ = round_trip(name, almost)
        assert torch.equal(back, almost)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_int8_is_off_by_half_a_step_of_its_row_at_most(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    source = (torch.randn(50, 64) * torch.logspace(-3, 3, 50).unsqueeze(1)).to(dtype)
    back, packed = round_trip("int8", source)
    steps = source.double().abs().amax(dim=1, keepdim=True) / 127
    rounding = torch.finfo(dtype).eps * source.double().abs()
    assert bool(((back.double() - source.double()).abs() <= steps * 0.501 + rounding).all())
    assert packed.numel() == HEADER_BYTES + 8 + 50 * 8 + 50 * 64


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_fp8_keeps_four_bits_of_every_value_that_is_not_tiny(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    source = torch.randn(50, 64).to(dtype)
    back, packed = round_trip("fp8", source)
    scale = float(source.abs().amax()) / 448
    error = (back.double() - source.double()).abs()
    # Half a unit of a 4-bit significand, or of the subnormal numbers (2^-9) below 2^-6.
    bound = (source.double().abs() / 16).clamp(min=scale * 2**-10) * 1.01
    assert bool((error <= bound).all())
    assert packed.numel() == HEADER_BYTES + 8 + 50 * 64


@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize(
    "source",
    [
        torch.arange(100) * 3,
        torch.randn(64, 1),  # the statistics of a norm
        torch.tensor([1.0, float("inf"), float("nan")] * 20),
        torch.zeros(40),
        torch.tensor(3.25),
        torch.randn(40, dtype=torch.complex64),
        torch.rand(3, 40) < 0.5,
        torch.full((40,), 1e-45),
    ],
    ids=["indices", "statistics", "not finite", "zeros", "scalar", "complex", "mask", "tiniest"],
)
def test_lossy_codecs_leave_alone_what_must_not_lose(name: str, source: torch.Tensor) -> None:
    back, _ = round_trip(name, source)
    assert torch.equal(bits(back), bits(source))


def test_distortion_is_nothing_for_exact_codecs_and_measured_for_others() -> None:
    torch.manual_seed(0)
    source = torch.randn(64, 256)
    assert measure_distortion(choose_codec("mask"), source).largest == 0
    lossy = measure_distortion(choose_codec("int8"), source)
    back, _ = round_trip("int8", source)
    assert lossy.largest == pytest.approx(float((back - source).abs().max()), rel=1e-6)
    assert lossy.relative == pytest.approx(float((back - source).norm() / source.norm()), rel=1e-5)
    assert 0 < lossy.relative < 0.01


@pytest.mark.parametrize("name", CODECS)
def test_every_byte_of_the_header_is_checked(name: str) -> None:
    source = torch.nn.functional.gelu(torch.arange(-512.0, 512.0))
    codec = choose_codec(name)
    for position in range(HEADER_BYTES):
        packed = codec.compress(source)
        packed[position] ^= 1
        with pytest.raises(CodecError, match="damaged"):
            codec.decompress(packed, torch.empty_like(source))


@settings(deadline=None)
@given(st.sampled_from(CODECS), st.data())
def test_any_changed_or_missing_byte_is_a_named_error(name: str, data: st.DataObject) -> None:
    torch.manual_seed(0)
    source = torch.nn.functional.gelu(torch.randn(8, 1024))
    codec = choose_codec(name)
    packed = codec.compress(source)
    if data.draw(st.booleans()):
        position = data.draw(st.integers(0, packed.numel() - 1))
        packed[position] ^= data.draw(st.integers(1, 255))
    else:
        packed = packed[: data.draw(st.integers(0, packed.numel() - 1))]
    with pytest.raises(CodecError, match="damaged"):
        codec.decompress(packed, torch.empty_like(source))


def test_packed_bytes_of_another_tensor_are_refused() -> None:
    codec = choose_codec("int8")
    packed = codec.compress(torch.randn(4, 32))
    with pytest.raises(CodecError, match="make a tensor of 512 bytes with 4-byte numbers"):
        codec.decompress(packed, torch.empty(4, 31))
    with pytest.raises(CodecError, match=r"got torch.int32 of 512 bytes to unpack into"):
        codec.decompress(packed, torch.empty(4, 32, dtype=torch.int32))
    with pytest.raises(CodecError, match="contiguous CPU tensor"):
        codec.decompress(packed, torch.empty(32, 4).t())
    with pytest.raises(CodecError, match="expected a dense CPU tensor"):
        codec.compress(torch.empty(4, device="meta"))


def test_names_that_mean_nothing_are_answered_with_those_that_do() -> None:
    with pytest.raises(CodecError, match="no codec 'gzip'; there are mask, lz4, zstd, int8, fp8"):
        choose_codec("gzip")
    assert [choose_codec(name).is_lossless for name in CODECS] == [True, True, True, False, False]
    assert [choose_codec(name).name for name in CODECS] == list(CODECS)


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_missing_package_is_told_when_the_codec_is_chosen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "blosc2", None)  # Python's own way of saying: not there
    with pytest.raises(MissingExtraError, match="needs the package `blosc2`"):
        choose_codec(name)


@pytest.mark.parametrize(
    ("ratio", "codec", "disk", "has_free_core", "expected"),
    [
        (1.25, 1000e6, 300e6, True, True),  # the disk then takes 375 MB/s
        (1.25, 1000e6, 300e6, False, False),
        (1.25, 1000e6, 2000e6, True, False),  # the codec is slower than the disk
        (1.0, 1000e6, 300e6, True, False),  # nothing gained
    ],
)
def test_compressing_is_worth_it_where_the_disk_is_the_slower_part(
    ratio: float, codec: float, disk: float, has_free_core: bool, expected: bool
) -> None:
    assert worth_compressing(ratio, codec, disk, has_free_core=has_free_core) is expected


def test_rates_are_measured() -> None:
    torch.manual_seed(0)
    rates = measure_codec(choose_codec("lz4"), torch.nn.functional.gelu(torch.randn(100, 1000)))
    assert rates.ratio > 1.05
    assert rates.compress_bytes_per_second > 0
    assert rates.decompress_bytes_per_second > 0
