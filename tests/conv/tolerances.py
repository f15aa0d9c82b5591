"""How far a convolution may be from ATen's in double precision: one table, with reasons.

Errors are relative to the largest value of the expected tensor, because a sum that cancels to
almost nothing has an error of the size of its parts.
"""

import torch

TOLERANCES = {
    # Sums of up to some thousand products in another order: a few hundred roundings of 2**-53.
    torch.float64: 1e-12,
    # The same with roundings of 2**-24.
    torch.float32: 2e-5,
    # Sums are kept in float32, so one rounding of 2**-9 of the result and one of the reference.
    torch.bfloat16: 2**-7,
    # The same with 2**-12.
    torch.float16: 2**-10,
}


# Of the parts of a sum: where all of a small tensor cancels, its largest value says nothing of them.
ROUNDINGS_OF_PARTS = 4


def require_close(
    got: torch.Tensor,
    expected: torch.Tensor,
    tolerance: float | None = None,
    parts: torch.Tensor | None = None,
) -> None:
    """Raise `AssertionError` unless `got` is `expected` up to the table's tolerance.

    `parts` are the sums of the products' absolute values: a few of their roundings are allowed, too.
    """
    assert got.shape == expected.shape, f"{tuple(got.shape)} is not {tuple(expected.shape)}"
    if tolerance is None:
        tolerance = TOLERANCES[got.dtype]
    dtype = got.dtype
    got, expected = got.detach().double(), expected.detach().double()
    assert torch.equal(got.isnan(), expected.isnan()), "NaNs are in different places"
    infinite = expected.isinf()
    assert torch.equal(got[infinite], expected[infinite]), "infinities differ"
    finite = expected.isfinite()
    if not bool(finite.any()):
        return
    error = float((got[finite] - expected[finite]).abs().max())
    largest = float(expected[finite].abs().max())
    allowed = tolerance * largest
    if parts is not None:
        summed_in = torch.float64 if dtype is torch.float64 else torch.float32
        rounding = torch.finfo(summed_in).eps / 2
        allowed = max(allowed, ROUNDINGS_OF_PARTS * rounding * float(parts.abs().max()))
    assert error <= allowed, (
        f"error {error:.3g} is more than {tolerance:.3g} of the largest value {largest:.3g}"
    )
