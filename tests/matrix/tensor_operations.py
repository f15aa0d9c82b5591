"""Unified tensors in memory, on disk and in fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import shorthaul as sh
from tests.matrix.operation import (
    Operation,
    Run,
    Tensors,
    as_leaf,
    random_numbers,
    random_tensor,
    with_gradients,
)

POINTERS = [0, 5, 5, 12, 20]


def _table() -> dict[str, torch.Tensor]:
    return {"x": random_tensor(50, 6), "ids": random_numbers(50, 20)}


def _segments() -> dict[str, torch.Tensor]:
    pointers = torch.tensor(POINTERS, dtype=torch.int64, device="cpu")
    return {**_table(), "pointers": pointers, "weights": random_tensor(20)}


def _product() -> dict[str, torch.Tensor]:
    return {**_table(), "weight": random_tensor(4, 6), "bias": random_tensor(4)}


def _rows() -> dict[str, torch.Tensor]:
    return {**_table(), "rows": random_tensor(20, 6)}


def _index(given: Tensors, _: Path) -> Run:
    def run() -> Tensors:
        x = as_leaf(given["x"])
        return with_gradients(sh.unified(x.detach()).requires_grad_(x.requires_grad)[given["ids"]])

    return run


def _trained(given: Tensors, _: Path) -> Run:
    def run() -> Tensors:
        table = as_leaf(sh.unified(given["x"], sparse_grad=True))
        return with_gradients(table[given["ids"]], x=table)

    return run


def _plain_trained(given: Tensors) -> Tensors:
    x = as_leaf(given["x"])
    return with_gradients(x[given["ids"].long()], x=x)


def _gather_out(given: Tensors, _: Path) -> Run:
    out = torch.full((20, 6), 77).to(given["x"].dtype)

    def run() -> Tensors:
        u = sh.unified(given["x"])
        for ids in (given["ids"].flip(0), given["ids"]):
            assert u.gather(ids, out=out) is out
        return {"out": out.clone()}

    return run


def _plain_rows(given: Tensors) -> Tensors:
    return {"out": given["x"][given["ids"].long()]}


def _reduce(op: str, has_weights: bool) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, _: Path) -> Run:
        def run() -> Tensors:
            x, weights = as_leaf(sh.unified(given["x"])), as_leaf(given["weights"])
            leaves = {"x": x, "weights": weights} if has_weights else {"x": x}
            factor = weights if has_weights else None
            out = x.gather_reduce(given["pointers"], given["ids"], op, weights=factor)
            return with_gradients(out, **leaves)

        return run

    return prepare


def _plain_reduce(op: str, has_weights: bool) -> Callable[[Tensors], Tensors]:
    def plain(given: Tensors) -> Tensors:
        x, weights = as_leaf(given["x"]), as_leaf(given["weights"])
        rows = x[given["ids"].long()]
        rows = rows * weights[:, None] if has_weights else rows
        parts = rows.tensor_split(given["pointers"][1:-1].long().tolist())
        reduce = {
            "sum": lambda p: p.sum(0),
            "mean": lambda p: p.mean(0),
            "max": lambda p: p.amax(0),
        }
        zeros = torch.zeros(rows.shape[1], dtype=rows.dtype, device="cpu")
        out = torch.stack([reduce[op](part) if len(part) else zeros for part in parts])
        return with_gradients(out, **({"x": x, "weights": weights} if has_weights else {"x": x}))

    return plain


def _linear(given: Tensors, _: Path) -> Run:
    def run() -> Tensors:
        x, weight, bias = (
            as_leaf(each) for each in (sh.unified(given["x"]), given["weight"], given["bias"])
        )
        out = x.gather_linear(given["ids"], weight, bias)
        return with_gradients(out, x=x, weight=weight, bias=bias)

    return run


def _plain_linear(given: Tensors) -> Tensors:
    x, weight, bias = (as_leaf(given[name]) for name in ("x", "weight", "bias"))
    out = torch.nn.functional.linear(x[given["ids"].long()], weight, bias)
    return with_gradients(out, x=x, weight=weight, bias=bias)


def _scatter(given: Tensors, _: Path) -> Run:
    def run() -> Tensors:
        x = given["x"]
        before = x.clone()
        sh.unified(x).scatter_(given["ids"], given["rows"])
        after = x.clone()
        x.copy_(before)  # for the next call
        return {"out": after}

    return run


def _plain_scatter(given: Tensors) -> Tensors:
    x = given["x"].clone()
    for place, row in zip(given["ids"].tolist(), given["rows"], strict=True):
        x[place] = row
    return {"out": x}


def _slices(given: Tensors, _: Path) -> Run:
    def run() -> Tensors:
        u = sh.unified(given["x"])
        return {
            "rows": u[3:9].cpu(),
            "every other": u[1::2].cpu(),
            "columns": u[:, 1:3].cpu(),
            "of rows": u[10:][given["ids"] // 2],
            "read": u.read(4, 9).clone(),
            "chunks": torch.cat(list(u.chunks(7))),
            "ahead": u.prefetch(given["ids"]).wait(),
        }

    return run


def _plain_slices(given: Tensors) -> Tensors:
    x, ids = given["x"], given["ids"].long()
    return {
        "rows": x[3:9],
        "every other": x[1::2],
        "columns": x[:, 1:3],
        "of rows": x[10:][ids // 2],
        "read": x[4:9],
        "chunks": x,
        "ahead": x[ids],
    }


def _made(given: Tensors, _: Path) -> Run:
    def run() -> Tensors:
        x = given["x"]
        zeros = sh.unified_zeros(3, 2, dtype=torch.float32)
        empty = sh.unified_empty(50, 6, dtype=x.dtype, shared=True)
        empty.copy_(x)
        shared = sh.unified(x, shared=True)
        found = {"zeros": zeros.cpu(), "empty": empty[given["ids"]], "shared": shared[given["ids"]]}
        return {name: torch.Tensor.clone(each) for name, each in found.items()}

    return run


def _plain_made(given: Tensors) -> Tensors:
    rows = given["x"][given["ids"].long()]
    return {"zeros": torch.zeros(3, 2, dtype=torch.float32), "empty": rows, "shared": rows}


def _file(suffix: str, **options: object) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, folder: Path) -> Run:
        path = folder / f"table{suffix}"

        def run() -> Tensors:
            x, ids = given["x"], given["ids"]
            opening: dict[str, object] = dict(options)
            if suffix == ".pt":
                torch.save(x, path)
            else:
                sh.save_features(path, x, progress=False)
            if suffix == ".bin":
                opening |= {"dtype": x.dtype, "shape": (-1, 6)}
            u = sh.open(path, **opening)
            found = {
                "rows": u[ids],
                "ahead": u.prefetch(ids).wait(),
                "part": u[3:9].cpu(),
                "of rows": u[10:][ids // 2],
                "sums": u.gather_reduce(given["pointers"], ids, "sum", weights=given["weights"]),
                "products": u.gather_linear(ids, given["weight"], given["bias"]),
            }
            u.close()
            return {name: each.detach() for name, each in found.items()}

        return run

    return prepare


def _on_disk() -> dict[str, torch.Tensor]:
    return {**_segments(), **_product()}


def _plain_file(given: Tensors) -> Tensors:
    x, ids = given["x"], given["ids"].long()
    with torch.no_grad():
        return {
            "rows": x[ids],
            "ahead": x[ids],
            "part": x[3:9],
            "of rows": x[10:][ids // 2],
            "sums": _plain_reduce("sum", True)(given)["out"],
            "products": _plain_linear(given)["out"],
        }


def _quantized(kind: str) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, folder: Path) -> Run:
        def run() -> Tensors:
            ids = given["ids"]
            path = folder / "quantized.safetensors"
            saved = sh.save_features(path, given["x"], quantize=kind, progress=False)
            u = sh.open(path)
            table = sh.unified(sh.tensors.quantize(given["x"], kind))
            found = {}
            for name, each in (("disk", u), ("memory", table)):
                found[name] = each[ids]
                found[f"{name} sums"] = each.gather_reduce(given["pointers"], ids, "sum")
                found[f"{name} products"] = each.gather_linear(ids, given["weight"].to(each.dtype))
            u.close()
            assert saved.largest_error <= 0.05
            return {name: each.detach().float() for name, each in found.items()}

        return run

    return prepare


def _plain_quantized(kind: str) -> Callable[[Tensors], Tensors]:
    def plain(given: Tensors) -> Tensors:
        x = given["x"]
        if kind == "int8":
            scales = (x.float().abs().amax(1, keepdim=True) / 127).clamp_min(1e-30)
            seen = (x.float() / scales).round() * scales
        else:
            seen = x.to(getattr(torch, kind)).float()
        rows = seen[given["ids"].long()]
        parts = rows.tensor_split(given["pointers"][1:-1].long().tolist())
        sums = torch.stack([part.sum(0) for part in parts])
        products = rows @ given["weight"].float().T
        found = {"": rows, " sums": sums, " products": products}
        return {place + name: each for place in ("disk", "memory") for name, each in found.items()}

    return plain


OPERATIONS = (
    Operation("u[ids]", _table, _index, _plain_rows, is_exact=True),
    Operation("u[ids] of a parameter", _table, _trained, _plain_trained),
    Operation("u.gather(out=)", _table, _gather_out, _plain_rows, is_exact=True),
    Operation("u.scatter_", _rows, _scatter, _plain_scatter, is_exact=True, writes="x"),
    Operation("u.gather_linear", _product, _linear, _plain_linear),
    Operation("slices of u", _table, _slices, _plain_slices, is_exact=True),
    Operation("new and shared u", _table, _made, _plain_made, is_exact=True),
    *(
        Operation(
            f"u.gather_reduce {op}{' weighted' if has_weights else ''}",
            _segments,
            _reduce(op, has_weights),
            _plain_reduce(op, has_weights),
            is_heavy=has_weights is not (op == "sum"),
        )
        for op in ("sum", "mean", "max")
        for has_weights in (False, True)
    ),
    *(
        Operation(
            f"a {suffix} file", _on_disk, _file(suffix), _plain_file, is_heavy=suffix != ".npy"
        )
        for suffix in (".npy", ".safetensors", ".pt", ".bin")
    ),
    Operation(
        "a cached .npy file", _on_disk, _file(".npy", cache="sieve", cache_bytes=256), _plain_file
    ),
    *(
        Operation(
            f"{kind} rows",
            _on_disk,
            _quantized(kind),
            _plain_quantized(kind),
            is_heavy=kind != "int8",
        )
        for kind in ("float16", "bfloat16", "int8")
    ),
)
