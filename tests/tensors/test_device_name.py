"""`device="unified"` works for those who ask for it, in processes of their own."""

import subprocess
import sys

PREAMBLE = """
import torch, shorthaul as sh
sh.enable_unified_device()
sh.enable_unified_device()
is_unified = lambda x: type(x) is sh.UnifiedTensor
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_factories_conversions_and_operations() -> None:
    program = (
        PREAMBLE
        + """
for made in (
    torch.empty(3, 2, device="unified"), torch.zeros(2, device="unified"),
    torch.ones(2, 2, device="unified"), torch.full((2,), 3.0, device="unified"),
    torch.arange(4, device="unified"), torch.tensor([1, 2], device="unified"),
    torch.rand(3, device="unified"), torch.eye(2, device="unified"),
    torch.empty_strided((2, 2), (1, 2), device="unified"),
    torch.zeros_like(torch.ones(2), device="unified"),
    torch.nn.Linear(2, 2, device="unified").weight,
):
    assert is_unified(made), made
x = torch.randn(4, 3)
u = x.to("unified")
assert is_unified(u) and torch.equal(u, x) and u.data_ptr() != x.data_ptr()
assert u.to("unified") is u
assert is_unified(x.to("unified", torch.float64)) and is_unified(torch.zeros_like(u, device="unified"))
assert torch.equal(u[torch.tensor([3, 1])], x[[3, 1]])
assert type(u + 1) is torch.Tensor and type(u.cpu()) is torch.Tensor
assert torch.ones(2, 2, device="unified", dtype=torch.int32).dtype is torch.int32
nhwc = torch.empty(1, 2, 3, 4, device="unified", memory_format=torch.channels_last)
assert nhwc.is_contiguous(memory_format=torch.channels_last)
assert torch.equal(torch.arange(4, device="unified").cpu(), torch.arange(4))
print("well")
"""
    )
    assert run(program) == "well\n"


def test_another_backend_has_the_name() -> None:
    program = """
import torch, shorthaul as sh
assert type(sh.unified(torch.ones(2)) + 1) is torch.Tensor
assert torch._C._get_privateuse1_backend_name() == "privateuseone"  # nobody took it unasked
torch.utils.rename_privateuse1_backend("another")
try:
    sh.enable_unified_device()
except sh.errors.UnifiedDeviceError as error:
    print(error)
"""
    assert "torch has room for one additional device, and 'another' has it" in run(program)
