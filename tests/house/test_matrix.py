"""Every public name is a row of the matrix, or says why it is none."""

import importlib
from collections.abc import Iterable, Mapping

from tests.matrix.table import OPERATIONS

# Packages whose names are used on tensors, models and graphs.
PACKAGES = ("", "conv", "graphs", "relational", "tensors", "offload", "distributed", "integrations")

# The rows of names that are not called as they are.
ROWS: dict[str, str] = {
    "Conv1d": "sh.Conv1d",
    "Conv2d": "sh.Conv2d",
    "Conv3d": "sh.Conv3d",
    **{f"conv{n}d": f"sh.conv{n}d" for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": f"sh.conv_transpose{n}d" for n in (1, 2, 3)},
    "RelationalGraph": "from_edges",
    "UnifiedTensor": "u.scatter_",
    "open": "a .npy file",
    "save_features": "a .safetensors file",
    "quantize": "int8 rows",
    "unified": "u[ids]",
    "unified_empty": "new and shared u",
    "unified_zeros": "new and shared u",
    "layer": "a layer of one's own",
}

# Why the others have none.
_VALUE = "a value that operations return or take: it is looked at in their rows"
_TRACED = "a word of the language of layers, which means something only while a layer is traced"
_SETUP = "says how things are done from now on, and computes nothing"
_PACKAGE = "a package: its names are looked at by themselves"
_STEPS = "measures whole steps of a user's program, which are surroundings of their own"
_HOST = "is called by a host library, around whole trainings"
_FILES = "reads and writes files of saved graphs, and no tensor of a user's"
_RANKS = "many processes take part: tests/distributed has surroundings of its own"
WITHOUT: dict[str, str] = {
    **dict.fromkeys(
        (
            "ACTIVATIONS", "PADDING_MODES", "TWELVE_LAYERS", "ConvProblem", "Estimate", "Layer",
            "QuantizationReport", "QuantizedLayer", "ReplacedLayer", "ReplacementReport",
            "WarmUpReport", "estimate", "Block", "DatabaseGraph", "HeteroBatch", "LinkBatch",
            "MiniBatch", "NegativeEdges", "NeighborSample", "NodeNames", "PairIndex", "Relation",
            "RelationIndex", "SourceIndex", "Table", "TargetIndex", "TaskSeeds", "TypedBlock",
            "AccelerationReport", "CompiledLayer", "Machine", "SavedTable", "ActivationOffload",
            "OffloadReport", "SavedTensor", "Advice", "TaskLinks", "__version__", "errors",
        ),
        _VALUE,
    ),
    **dict.fromkeys(
        (
            "EdgeFeature", "NodeFeature", "TargetFeature", "Weight", "absolute", "broadcast",
            "concat", "cosine", "dot", "drop_edges", "dropout", "elu", "exp", "gelu", "layer_norm",
            "leaky_relu", "linear", "log", "maximum", "minimum", "outer", "over_nodes", "positive",
            "reduce_max", "reduce_mean", "reduce_min", "reduce_sum", "relu", "sigmoid", "silu",
            "sine", "softmax", "softplus", "sqrt", "tanh", "total",
        ),
        _TRACED,
    ),
    **dict.fromkeys(("settings", "enable_unified_device", "load_dgl_state_dict"), _SETUP),
    **dict.fromkeys(
        (
            "conv", "datasets", "distributed", "graphs", "integrations", "jit", "offload",
            "relational", "tensors",
        ),
        _PACKAGE,
    ),
    **dict.fromkeys(
        (
            "Meter", "meter", "advise", "apply", "explain", "fit", "plan", "project", "region",
            "retry_step", "wrap", "enter_at_calls",
        ),
        _STEPS,
    ),
    **dict.fromkeys(
        ("LightningCallback", "PreparedOffload", "ShorthaulCallback", "offload_prepared"), _HOST
    ),
    "DGLHeteroGraphConv": "takes graphs of DGL alone: tests/relational/layers/of_dgl",
    **dict.fromkeys(("add_indexes", "write_graph"), _FILES),
    "estimate_inclusion": "an estimate, for choosing rows that are kept near: it computes no result",
    **dict.fromkeys(("from_relbench", "read_task"), "reads what `from_tables` makes of a benchmark"),
    **dict.fromkeys(
        (
            "DistributedTable", "LearnableTable", "PartReport", "PartitionBook", "PartitionReport",
            "Parts", "RankBatch", "TableState", "Traffic", "WholeGraph", "partition",
        ),
        _RANKS,
    ),
}  # fmt: skip


def list_public_names() -> set[str]:
    """The names of all packages."""
    return {
        name
        for package in PACKAGES
        for name in importlib.import_module(f"shorthaul.{package}".rstrip(".")).__all__
    }


def find_missing(
    names: Iterable[str], rows: Mapping[str, str], without: Mapping[str, str], known: Iterable[str]
) -> list[str]:
    """Names that nothing is said of, things said of no name, and rows that there are not."""
    names, operations = set(names), set(known)
    problems = [
        f"{name} is no row of tests/matrix, and nothing says why"
        for name in sorted(names)
        if name not in rows and name not in without and name not in operations
    ]
    problems += [f"{name} is no public name" for name in sorted({*rows, *without} - names)]
    problems += [
        f"{name} is to be row {row!r}, which there is not"
        for name, row in rows.items()
        if row not in operations
    ]
    problems += [
        f"{name} is a row, and is said to be none" for name in sorted(operations & without.keys())
    ]
    return problems


def test_every_public_name_is_a_row_or_says_why_not() -> None:
    problems = find_missing(list_public_names(), ROWS, WITHOUT, OPERATIONS)
    assert not problems, "\n".join(problems)


def test_what_is_missing_is_found() -> None:
    assert find_missing(["one"], {}, {}, ["one"]) == []
    assert find_missing(["one"], {}, {}, []) == [
        "one is no row of tests/matrix, and nothing says why"
    ]
    assert find_missing([], {}, {"one": "a value"}, []) == ["one is no public name"]
    assert find_missing(["one"], {"one": "row"}, {}, []) == [
        "one is to be row 'row', which there is not"
    ]
    assert find_missing(["one"], {}, {"one": "a value"}, ["one"]) == [
        "one is a row, and is said to be none"
    ]
