"""Every error reads as a whole sentence: expected, got, where, what to do."""

import copy
import errno
import inspect
import pickle
from pathlib import Path

import pytest

from shorthaul import errors
from shorthaul.errors import (
    ActivationLostError,
    BlockChangedError,
    BufferBudgetError,
    CacheOwnershipError,
    CapturedDropoutError,
    ChangedFileError,
    CheckpointError,
    ClosedTableError,
    CompileError,
    CompilerDefectError,
    CudaMappingError,
    CudaUnavailableError,
    DatabaseError,
    DeviceRoomError,
    DiskTensorError,
    EdgeRangeError,
    EngineUnavailableError,
    ExchangeError,
    ExplainError,
    ForeignKeyError,
    GradientPlaceError,
    GraphChangedError,
    GraphFileError,
    GridTooLargeError,
    InPlaceChangeError,
    KernelArgumentError,
    KernelLoadError,
    KernelMismatchError,
    KernelPendingError,
    KernelStatusError,
    LateRowIndexError,
    LayerArgumentError,
    LayerLanguageError,
    LocalRanksError,
    MachineMemoryError,
    MissingExtraError,
    MissingPackageError,
    MissingTableError,
    NoCompilerError,
    NoFitError,
    NoNegativeError,
    OffloadBudgetError,
    PartFileError,
    PlacementError,
    ProcessMemoryError,
    RankDisagreementError,
    ReadOnlyTableError,
    ReadOnlyTensorError,
    RelationalProgramError,
    RowArgumentError,
    RowIndexError,
    RowReadError,
    ScratchDirectoryError,
    SecondDerivativeError,
    SeedRangeError,
    SettingError,
    ShorthaulError,
    ShortReadError,
    SpoolFullError,
    StorageError,
    TableFormatError,
    TableOpenError,
    TemporaryFileSystemError,
    TritonUnavailableError,
    UnifiedDeviceError,
    UnifiedSourceError,
    UnknownSettingError,
    UnsafeFileError,
    WaitTimeoutError,
)

# One line for each class that builds its own sentence; test_every_sentence_is_read keeps it whole.
GOLDEN: dict[ShorthaulError, str] = {
    SettingError("SHORTHAUL_ENGINE", "fast", "expected one of auto, uring"): (
        "SHORTHAUL_ENGINE is 'fast', but expected one of auto, uring."
    ),
    UnknownSettingError("speed", ("engine", "kernels")): (
        "there is no setting `speed`; there are engine, kernels."
    ),
    RelationalProgramError(
        "linear",
        "vectors have width 8, the matrix takes 9",
        "x (8), w (9, 4)",
        "in rgcn (a.py:3):  y",
    ): (
        "`linear` cannot be taken: vectors have width 8, the matrix takes 9.\n"
        "  in rgcn (a.py:3):  y\n"
        "  operands: x (8), w (9, 4)"
    ),
    LayerLanguageError("nodes have no value `k`", "assign it first", "in hgt (a.py:9):  n.k"): (
        "nodes have no value `k`.\n  in hgt (a.py:9):  n.k\n  Instead: assign it first."
    ),
    LayerArgumentError("rgcn needs `x`", "pass x=<tensor>"): (
        "rgcn needs `x`.\n  Pass x=<tensor>."
    ),
    CompilerDefectError("rgat", "lower", "`out` reads `tanh`, which nothing has made by then"): (
        "after `lower`, the compiled layer `rgat` is inconsistent: `out` reads `tanh`, which "
        "nothing has made by then.\n"
        "  This is a defect of shorthaul, not of the layer: please report it with the layer's text.\n"
        '  Until it is fixed, set `layer.function.backend = "reference"`: plain PyTorch, slower.'
    ),
    SecondDerivativeError("rgcn"): (
        "the gradient of the compiled layer `rgcn` was differentiated; it has a first derivative "
        "only.\n"
        '  Set `layer.function.backend = "reference"` for second derivatives: plain PyTorch, slower.\n'
        "  If that was not intended, omit create_graph=True."
    ),
    MissingExtraError("triton", "gpu", "compiling for a GPU"): (
        "compiling for a GPU needs the package `triton`, which is not installed.\n"
        "  pip install 'shorthaul[gpu]'"
    ),
    MissingPackageError("dgl", "RelationalGraph.to_dgl()"): (
        "RelationalGraph.to_dgl() needs the package `dgl`, which is not installed or does not load.\n"
        "  Its own pages say which of its builds fits your PyTorch."
    ),
    ExplainError(42): (
        "cannot explain 42: expected something that shorthaul made, such as a kernel."
    ),
    NoCompilerError(("$CXX", "g++", "clang++")): (
        "no C++ compiler was found (looked for: $CXX, g++, clang++).\n"
        "  Install g++ or clang++ (Debian: apt-get install g++), set CXX, or\n"
        "  pip install 'shorthaul[compiler]'; `shorthaul doctor` shows what is found."
    ),
    CompileError(
        "g++ 12.2.0",
        "rows_gather_3f2a91bc",
        Path("/c/3f2a91bc/kernel.cpp"),
        Path("/c/3f2a91bc/compile.sh"),
        "line 41: 'row_stop' was not declared in this scope",
    ): (
        "g++ 12.2.0 failed on rows_gather_3f2a91bc.\n"
        "  source   /c/3f2a91bc/kernel.cpp\n"
        "  command  /c/3f2a91bc/compile.sh\n"
        "  first error: line 41: 'row_stop' was not declared in this scope"
    ),
    KernelLoadError(Path("/c/3f2a91bc/kernel.so"), "Operation not permitted"): (
        "/c/3f2a91bc/kernel.so cannot be loaded: Operation not permitted.\n"
        "  Where the file system is mounted `noexec`, point SHORTHAUL_CACHE at another one."
    ),
    KernelPendingError("conv_window_general"): (
        "conv_window_general is still being compiled in the background.\n"
        "  To wait for it, and to have the compiler's error here, set SHORTHAUL_COMPILE=wait."
    ),
    KernelPendingError("conv_window_general", has_failed=True): (
        "conv_window_general did not compile in the background; the log says why.\n"
        "  To wait for it, and to have the compiler's error here, set SHORTHAUL_COMPILE=wait."
    ),
    CacheOwnershipError(Path("/c"), "it belongs to user 1001"): (
        "the kernel cache /c is refused: it belongs to user 1001.\n"
        "  It holds code that would be loaded into this process. Make it yours alone\n"
        "  (chmod 700 /c) or point SHORTHAUL_CACHE at another directory."
    ),
    KernelArgumentError("rows_gather", "ids", "an int64 tensor", "a float32 tensor"): (
        "rows_gather: argument `ids` must be an int64 tensor, got a float32 tensor."
    ),
    KernelStatusError("rows_gather", 7): "rows_gather returned status 7; expected 0.",
    StorageError("write", "/scratch/spool", 4096, 8192, errno.ENOSPC, "Free some space."): (
        "write of /scratch/spool failed at bytes 4,096 to 12,288: "
        "ENOSPC (No space left on device).\n"
        "  Free some space."
    ),
    ShortReadError("/data/features", 1_000_000, 4096, 512): (
        "read of /data/features failed at bytes 1,000,000 to 1,004,096: "
        "ENODATA (No data available).\n"
        "  The file ends early: 512 of 4,096 bytes were there."
    ),
    UnsafeFileError("/scratch/spool", "it is a symbolic link"): (
        "/scratch/spool is not opened: it is a symbolic link."
    ),
    EngineUnavailableError("uring", "io_uring is switched off"): (
        "the uring engine cannot be used here: io_uring is switched off.\n"
        "  Set SHORTHAUL_ENGINE=auto to take the best engine that works."
    ),
    WaitTimeoutError("the read of /data/features", 0.25): (
        "the read of /data/features was not done after 0.25 s."
    ),
    BufferBudgetError(8 * 2**20, 2**20): (
        "a buffer of 8.0 MiB (8,388,608 bytes) can never fit "
        "the pool's budget of 1.0 MiB (1,048,576 bytes)."
    ),
    TemporaryFileSystemError(Path("/dev/shm"), "tmpfs"): (
        "/dev/shm is a tmpfs: what is written there stays in memory.\n"
        "  Give a directory on a disk, set SHORTHAUL_SCRATCH, or pass `allow_memory=True`."
    ),
    ScratchDirectoryError(Path("/none/scratch")): (
        "the scratch directory /none/scratch does not exist.\n"
        "  Make it first (mkdir -p), or give another one on a disk with room for activations: "
        "`directory=`\n  or SHORTHAUL_SCRATCH. It is not made here: a path that is misspelled, or a "
        "disk that is not mounted,\n  would fill another disk."
    ),
    LocalRanksError("16GiB/machine", None): (
        "budget='16GiB/machine' is shared by the ranks of a machine, but how many they are is not known: "
        "LOCAL_WORLD_SIZE is not set.\n"
        "  torchrun sets it; with another launcher set it to the number of processes on each machine, or "
        "give each process its own budget."
    ),
    SpoolFullError(
        Path("/scratch"), 2**30, used_bytes=2**32, free_bytes=2**29, reserve_bytes=2**26
    ): (
        "activations need 1.0 GiB (1,073,741,824 bytes) in one piece besides the 4.0 GiB that they "
        "use, but /scratch has 512.0 MiB (536,870,912 bytes) free, of which 64.0 MiB are left for "
        "others.\n"
        "  Lower the batch size, raise `minimum_bytes`, or give another directory.\n"
        "  `sh.offload.plan(model, batch)` shows what a step writes before training."
    ),
    SpoolFullError(
        Path("/scratch"),
        2**20,
        used_bytes=0,
        free_bytes=2**40,
        reserve_bytes=2**26,
        refusal="Disk quota exceeded",
    ): (
        "activations need 1.0 MiB (1,048,576 bytes) in one piece besides the 0 B that they use, but "
        "/scratch does not give them: Disk quota exceeded.\n"
        "  Lower the batch size, raise `minimum_bytes`, or give another directory.\n"
        "  `sh.offload.plan(model, batch)` shows what a step writes before training."
    ),
    ProcessMemoryError(
        2**30, 2**31, {"resident now": 2**29, "gradients": 2**28, "activations needed at once": 0}
    ): (
        "a memory of 1.0 GiB (1,073,741,824 bytes) for the process is too small: at least 2.0 GiB "
        "(2,147,483,648 bytes) are needed.\n"
        "  resident now 512.0 MiB, gradients 256.0 MiB, activations needed at once 0 B; a tenth of it "
        "is for temporaries.\n"
        "  Raise `memory` to 2,147,483,648 or more, or lower the batch size."
    ),
    BlockChangedError("h.3"): (
        "the block h.3 cannot be computed again: its parameters or buffers are not what they were in "
        "the forward pass.\n"
        "  No gradient was made from it. Change them after the backward pass, or have nothing computed "
        "again:\n"
        "  `shorthaul run --no-recompute`, `ShorthaulCallback(recompute=False)`."
    ),
    NoFitError(2**20, 2**21, "with 2 micro-batches", {"gradients": 2**19, "work space": 0}): (
        "no plan fits 1.0 MiB (1,048,576 bytes) of memory: the least that was found is 2.0 MiB "
        "(2,097,152 bytes), with 2 micro-batches.\n"
        "  It holds: gradients 512.0 KiB, work space 0 B.\n"
        "  Raise `memory` to 2,097,152 or more, lower the batch size, or take an optimizer\n"
        "  with smaller states."
    ),
    MachineMemoryError(2**33, 2**34, "in 4 micro-batches of 8 samples"): (
        "a step has to be run once, with everything kept, before it can be planned: in 4 micro-batches "
        "of 8 samples it needs 16.0 GiB (17,179,869,184 bytes), and this process can use 8.0 GiB "
        "(8,589,934,592 bytes) here.\n"
        "  Lower the batch size, allow smaller `micro_batches`, or plan it on a larger machine;\n"
        "  `sh.fit(model, batch, memory=..., dry=True)` runs nothing."
    ),
    OffloadBudgetError(2**21, 2**20, "by one layer"): (
        "the budget of 1.0 MiB (1,048,576 bytes) is too small: "
        "2.0 MiB (2,097,152 bytes) are needed at once by one layer.\n"
        "  Raise `budget` to 2,097,152 or more, or lower the batch size."
    ),
    OffloadBudgetError(2**21, 2**20, "by one layer", refusal="today's writes are used up"): (
        "the budget of 1.0 MiB (1,048,576 bytes) is used up, and the disk takes no more: today's "
        "writes are used up.\n"
        "  2.0 MiB (2,097,152 bytes) are needed now by one layer.\n"
        "  Make room on the disk, give another directory, or raise the daily limit; a larger\n"
        "  `budget` helps only if it holds what the disk does not take."
    ),
    ActivationLostError(
        "float32 (2, 3)", "layers.0", "/scratch/spool", 4096, "its check differs"
    ): (
        "the activation float32 (2, 3) of layers.0 is lost: its check differs.\n"
        "  file /scratch/spool, from byte 4,096\n"
        "  No gradient was made from it. Parameters are unchanged until the optimizer steps, so\n"
        "  `sh.offload.retry_step(step)` can run the step again."
    ),
    InPlaceChangeError("torch.FloatTensor [2, 3]", 2, 1): (
        "one of the variables needed for gradient computation has been modified by an inplace "
        "operation: [torch.FloatTensor [2, 3]] is at version 2; expected version 1 instead."
    ),
    RowIndexError(12, 3, 10): (
        "row id 12 at position 3 is out of range: the table has 10 rows, so ids go from -10 to 9."
    ),
    RowArgumentError("op", "one of sum, mean, max", "'min'"): (
        "op must be one of sum, mean, max, got 'min'."
    ),
    RowReadError("/data/features", range(7), ShortReadError("/data/features", 4096, 8192, 512)): (
        "read of /data/features failed at bytes 4,096 to 12,288: ENODATA (No data available).\n"
        "  the file ends early: 512 of 8,192 bytes were there; rows 0, 1, 2, 3, 4 and 2 more were "
        "not read, and no row of this request was handed out."
    ),
    ChangedFileError("/data/features", "it shrank from 100 to 10 bytes"): (
        "/data/features is not the file that the table was opened on: "
        "it shrank from 100 to 10 bytes.\n"
        "  Rows read from it could be those of another table. Open it again with `sh.open`."
    ),
    ReadOnlyTableError("scatter_", "/data/features"): (
        "scatter_: the table lies in /data/features, which is opened for reading only.\n"
        "  Write to a copy in memory (`sh.unified(table.read(0, rows))`), or write a new file\n"
        "  with `sh.save_features`."
    ),
    TableOpenError("x.npy", errno.EACCES): (
        "the table x.npy cannot be opened: EACCES (Permission denied)."
    ),
    MissingTableError("x.npy"): (
        "the table x.npy cannot be opened: ENOENT (No such file or directory)."
    ),
    ClosedTableError("x.npy"): (
        "the table x.npy has been closed, and no row of it is read any more.\n"
        "  Open it again, sh.open(path), or call u.close() later."
    ),
    TableFormatError("x.npy", "it is stored in Fortran order", "Write it in C order."): (
        "x.npy cannot be used as a table: it is stored in Fortran order.\n  Write it in C order."
    ),
    UnifiedSourceError("sh.unified", "a CPU tensor", "builtins.list", "Use sh.open(path)."): (
        "sh.unified expected a CPU tensor, got builtins.list.\n  Use sh.open(path)."
    ),
    DiskTensorError("add", "disk", "read", 2**30, "x.npy"): (
        "`add` is not done on a disk tensor: it would read all 1.0 GiB of x.npy.\n"
        "  Take the rows you need, u[ids] or u[a:b].cpu(), and compute with them; u.chunks()\n"
        "  goes through all rows piece by piece, and u.cpu() reads the whole table into memory."
    ),
    ReadOnlyTensorError("add_", "read-only memory"): (
        "`add_` cannot change this table: it lies in read-only memory.\n"
        "  Copy it first: sh.unified(u.cpu().clone())."
    ),
    KernelMismatchError("gathers", "float32 x 7", "the same bits", "others"): (
        "gathers (float32 x 7): expected the same bits, got others.\n"
        "  Do not trust results of this device; SHORTHAUL_KERNELS=torch computes without these\n"
        "  kernels. `shorthaul doctor --gpu --json` makes a report to send."
    ),
    LateRowIndexError(1234, "cuda:1"): (
        "an earlier gather on cuda:1 was given a row id that its table does not have, at position "
        "1,234 of its ids. What it gathered there is zeros.\n"
        "  With SHORTHAUL_DEVICE_CHECKS=at_once the gather itself raises, and names the id."
    ),
    CapturedDropoutError("gat"): (
        "the compiled layer `gat` draws its dropout anew for each call, and a CUDA graph that "
        "captured one would repeat the same choice at every replay.\n"
        "  Leave the layer out of the graph, or capture it in evaluation: layer.eval()."
    ),
    GridTooLargeError("sum_kernel", 2**31, 2**31 - 1): (
        "sum_kernel would need 2,147,483,648 programs, and a GPU counts to 2,147,483,647.\n"
        "  Call it on a part of the rows at a time."
    ),
    TritonUnavailableError("gathering", "there is no C compiler"): (
        "gathering needs Triton to run kernels, and it cannot: there is no C compiler.\n"
        "  Install both (Debian: apt-get install gcc python3-dev), or set CC to a compiler."
    ),
    DeviceRoomError("mul", 2**33, 2**30, "cuda:0"): (
        "`mul` on cuda:0 needs a copy of a unified tensor of 8.0 GiB, but 1.0 GiB are free there, "
        "and its memory cannot be mapped.\n"
        "  Read the rows that are needed, u[ids], or compute on the CPU: u.cpu()."
    ),
    GradientPlaceError("mul", "cuda:0"): (
        "`mul` of a unified tensor that requires gradients runs on cuda:0, and its gradient would lie "
        "there, but the tensor lies in host memory.\n"
        "  Gather the rows that are needed, u[ids], whose gradients come back; compute on the CPU, "
        "u.cpu(); or use torch.no_grad()."
    ),
    PlacementError("add", ["cpu", "cuda:0"]): (
        "`add` got a unified tensor together with tensors on cpu and cuda:0.\n"
        "  A unified tensor goes where the others are, so the others must be in one place:\n"
        "  move one of them with `.to(device)`."
    ),
    UnifiedDeviceError("another has the name"): (
        '`device="unified"` cannot be enabled: another has the name.\n'
        "  `sh.unified(tensor)` works without the name."
    ),
    EdgeRangeError("target", 7, 120, 100, "nodes"): (
        "the target of edge 7 is 120, but there are 100 nodes (0 to 99)."
    ),
    DatabaseError("orders", "it has no column `buyer`; there are id, item."): (
        "table `orders`: it has no column `buyer`; there are id, item."
    ),
    ForeignKeyError("orders", "buyer", "people", 1200): (
        "table `orders`: 1,200 values of `buyer` match no primary key of `people`.\n"
        "  With strict=False they make no edges, and are counted in `unmatched`."
    ),
    NoNegativeError(1, 0, 2, "user buys item", "target"): (
        "there is no negative for edge 1, from node 0 to node 2 by `user buys item`: replacing the "
        "target by any node that may be drawn gives an edge, or no node may be drawn.\n"
        "  Replace other ends, draw among all nodes of the type, or take true edges too "
        "(avoids=False)."
    ),
    SeedRangeError(120, 3, 100): (
        "seed 120 at position 3 is not a node: the graph has 100, numbered from 0."
    ),
    PartFileError("parts/part-1/paper.features.npy", "the file is missing", "Cut it again."): (
        "parts/part-1/paper.features.npy: the file is missing.\n  Cut it again."
    ),
    RankDisagreementError("the parts", {1: "version b", 0: "version a"}, "Copy them anew."): (
        "ranks do not agree on the parts: rank 0 has version a; rank 1 has version b.\n"
        "  Copy them anew."
    ),
    CheckpointError("a loader's batch_size", 7, 8, "Make the loader as it was."): (
        "the checkpoint does not fit a loader's batch_size: it has 7, and here is 8.\n"
        "  Make the loader as it was."
    ),
    ExchangeError(
        "nothing came within 300 s",
        1,
        "part 1",
        "rows of `features` for batch 7",
        ["rank 2 (part 2) gave no sign of life for 300 s"],
        "Look at that rank's log.",
    ): (
        "rank 1 (part 1) could not exchange rows of `features` for batch 7: nothing came within 300 s.\n"
        "  rank 2 (part 2) gave no sign of life for 300 s\n"
        "  Look at that rank's log."
    ),
    GraphChangedError(["source", "relation"]): (
        "`source`, `relation` of the graph changed in place after the graph was made, so its indexes "
        "would be wrong.\n"
        "  A graph does not change: make another one from the changed tensors."
    ),
    GraphFileError("aifb.nt.gz", 17, "expected a '.' at the end, got nothing."): (
        "aifb.nt.gz, line 17: expected a '.' at the end, got nothing."
    ),
    CudaUnavailableError("this PyTorch was built without CUDA"): (
        "CUDA cannot be used here: this PyTorch was built without CUDA.\n"
        "  `shorthaul doctor` shows what was found; everything else works without it."
    ),
    CudaMappingError("map", 0x7F0000001000, 8192, "CUDA answers 2, out of memory", "Raise it."): (
        "cannot map 8.0 KiB of host memory at 0x7f0000001000 for CUDA: "
        "CUDA answers 2, out of memory.\n  Raise it."
    ),
}


def _error_classes() -> list[type[ShorthaulError]]:
    return [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, ShorthaulError)
    ]


def _name(value: object) -> str:
    return type(value).__name__ if isinstance(value, ShorthaulError) else ""


@pytest.mark.parametrize(("error", "text"), GOLDEN.items(), ids=_name)
def test_the_whole_text(error: ShorthaulError, text: str) -> None:
    assert str(error) == text


def test_every_sentence_is_read() -> None:
    building = {each for each in _error_classes() if "__init__" in vars(each)}
    assert building == {type(each) for each in GOLDEN}


@pytest.mark.parametrize("kind", _error_classes(), ids=lambda kind: kind.__name__)
def test_each_is_also_the_builtin_that_a_caller_expects(kind: type[ShorthaulError]) -> None:
    if kind is ShorthaulError:
        return
    builtins = [each for each in kind.__mro__ if each.__module__ == "builtins"]
    assert set(builtins) - {object, BaseException, Exception}, f"{kind.__name__} has no builtin"


@pytest.mark.parametrize("error", GOLDEN, ids=_name)
@pytest.mark.parametrize(
    "travel", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"]
)
def test_an_error_survives_the_way_between_processes(error: ShorthaulError, travel) -> None:
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.args == error.args
    assert vars(arrived) == vars(error)
    if isinstance(error, OSError):
        assert isinstance(arrived, OSError)
        assert (arrived.errno, arrived.filename) == (error.errno, error.filename)
    if isinstance(error, ImportError):
        assert isinstance(arrived, ImportError)
        assert arrived.msg == error.msg


def test_a_storage_error_is_an_os_error_with_its_facts() -> None:
    error = StorageError("read", Path("/data/x"), 10, 20, errno.EIO)
    assert (error.errno, error.filename) == (errno.EIO, "/data/x")
    assert (error.action, error.offset_bytes, error.length_bytes) == ("read", 10, 20)
    assert str(error) == "read of /data/x failed at bytes 10 to 30: EIO (Input/output error)."


def test_a_storage_error_without_an_errno_says_so() -> None:
    error = StorageError("read", "/data/x", 0, 1, 0)
    assert str(error) == "read of /data/x failed at bytes 0 to 1: 0 (no errno)."


def test_a_short_read_is_both_a_storage_error_and_an_end_of_file() -> None:
    error = ShortReadError("/data/x", 0, 4096, 100)
    assert isinstance(error, StorageError)
    assert isinstance(error, EOFError)
    assert error.got_bytes == 100


def test_one_except_catches_them_all() -> None:
    for error in GOLDEN:
        with pytest.raises(ShorthaulError):
            raise error
