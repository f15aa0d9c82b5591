"""What each operator does with a unified operand: views stay unified, the rest follows the table.

A unified tensor in memory is an ordinary CPU tensor to every kernel, so most operators run on it as
they are, without wrapping or copying; what is decided here is where, and as what the result comes
back. A tensor whose rows lie on disk, or are quantized, has no memory of its own, and only the
operators of `_BY_ROW` are done on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.errors import (
    DeviceRoomError,
    GradientPlaceError,
    PlacementError,
    ReadOnlyTensorError,
)
from shorthaul.jit.launching.device_guard import with_number
from shorthaul.meter import record_move
from shorthaul.storage.protection import can_write
from shorthaul.tensors.dispatch.operand import Operand, is_parameter
from shorthaul.tensors.dispatch.placement import choose_placement

Operator = torch._ops.OpOverload

_aten = torch.ops.aten


@dataclass(frozen=True)
class OperatorFacts:
    """What an operator's schema says about its arguments and results."""

    name: str
    is_view: bool  # a result shares memory with the first argument
    written: tuple[int | str, ...]  # arguments that are changed, by position or keyword
    ignored: tuple[int | str, ...]  # indexes: they are no operands, they follow the table
    only_creates: bool  # a tensor such as the first argument, whose values are not read


# Operators whose index goes where the table goes: arguments by position.
_INDEXES: dict[str, tuple[int | str, ...]] = {
    "index": (1,),
    "index_select": (2,),
    "gather": (2,),
    "take": (1,),
    "take_along_dim": (1,),
    "masked_select": (1,),
    "embedding": (1,),
    "_embedding_bag": (1, 2),
    "_embedding_bag_forward_only": (1, 2),
}


@functools.cache
def describe_operator(operator: Operator) -> OperatorFacts:
    """The facts that dispatching needs, read from the schema once."""
    schema = operator._schema
    written: list[int | str] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else position)
    is_view = any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
    )
    name = schema.name.partition("::")[2]
    only_creates = name.endswith("_like") or name.startswith("new_")
    return OperatorFacts(name, is_view, tuple(written), _INDEXES.get(name, ()), only_creates)


@functools.cache
def current_device() -> torch.device | None:
    """The accelerator that unified tensors are read by: CUDA, where there is one."""
    return torch.device("cuda") if torch.cuda.is_available() else None


def run_operator(
    kind: type[Operand], operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run `operator`, of whose arguments at least one is unified."""
    facts = describe_operator(operator)
    operands = [*_tensors(args), *_tensors(kwargs.values())]
    unified = [each for each in operands if isinstance(each, kind)]
    without_memory = next((each for each in unified if not each.has_memory), None)
    if without_memory is not None:
        handler = _BY_ROW.get(operator)
        if handler is None:
            raise without_memory.refusal(facts.name)
        return handler(*args, **kwargs)
    if facts.written:
        return _run_written(kind, operator, facts, args, kwargs)
    if facts.is_view:
        with torch._C._DisableTorchDispatch():
            result = operator(*args, **kwargs)
        return _wrap(result, unified[0])
    device = kwargs.get("device")
    if device is not None:  # asked for by name, so there is nothing to choose
        return _run_where_asked(operator, args, kwargs, torch.device(device), unified[0])
    return _run_placed(kind, operator, facts, args, kwargs, unified)


def _run_written(
    kind: type[Operand],
    operator: Operator,
    facts: OperatorFacts,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """In place, or with `out=`: what is written to decides where."""
    targets = []
    for place in facts.written:
        value = kwargs.get(place) if isinstance(place, str) else _at(args, place)
        targets += [*_tensors([value])]
    for each in targets:
        if isinstance(each, kind):
            if each.is_read_only or (each.has_memory and not can_write(each)):
                raise ReadOnlyTensorError(facts.name, "read-only memory")
            each.wait_for_readers()
    if any(isinstance(each, kind) for each in targets):
        device = torch.device("cpu")
    else:
        device = targets[0].device if targets else torch.device("cpu")
    if device.type == "cpu":
        if operator is not _aten.copy_.default:  # which copies across devices itself
            args, kwargs = _moved(args, kwargs, _to_host)
    elif operator is not _aten.copy_.default:
        args, kwargs = _moved(args, kwargs, _mover(kind, facts.name, device))
    with torch._C._DisableTorchDispatch():
        return operator(*args, **kwargs)


def _run_where_asked(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    like: Operand,
) -> Any:
    is_unified = device.type not in ("cpu", "cuda", "meta") and device.type == _unified_name()
    if is_unified:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    with torch._C._DisableTorchDispatch():
        result = operator(*args, **kwargs)
    return _wrap(result, like, is_new=True) if is_unified else result


def _run_placed(
    kind: type[Operand],
    operator: Operator,
    facts: OperatorFacts,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    unified: Sequence[Operand],
) -> Any:
    counted, followers = _split_indexes(facts, args)
    others = [each for each in (*counted, *_tensors(kwargs.values())) if not isinstance(each, kind)]
    accelerated = [each for each in others if each.device.type != "cpu"]
    scalars = sum(each.dim() == 0 and each.device.type == "cpu" for each in others)
    placement = choose_placement(
        device_tensors=len(accelerated),
        cpu_tensors=len(others) - len(accelerated) - scalars,
        cpu_scalars=scalars,
        has_device=current_device() is not None,
        propagate=any(each.propagate for each in unified),
        only_creates=facts.only_creates or (facts.name == "_to_copy" and is_parameter(unified[0])),
    )
    if placement is None:
        raise PlacementError(facts.name, sorted({str(each.device) for each in others}))
    if placement.compute == "device":
        device = _choose_device([*accelerated, *followers])
        if followers and any(each.seen_by(device) is None for each in unified):
            # The CPU picks the rows, and they alone are copied.
            result = _run_on_host(operator, args, kwargs)
            _require_no_gradient(unified, [result], facts.name, device)
            _count_read([result], device, facts.name)
            return _moved((result,), {}, lambda each: each.to(device))[0][0]
        args, kwargs = _moved(args, kwargs, _mover(kind, facts.name, device))
    elif facts.ignored:
        args, kwargs = _moved(args, kwargs, _to_host)
    with torch._C._DisableTorchDispatch():
        result = operator(*args, **kwargs)
    if placement.compute == "device":
        _require_no_gradient(unified, [result], facts.name, device)
        _count_read([result] if followers else unified, device, facts.name)
    return _wrap(result, unified[0], is_new=True) if placement.output == "unified" else result


def _require_no_gradient(
    unified: Sequence[Operand], results: Any, name: str, device: torch.device
) -> None:
    """Raise where autograd would bring a gradient on `device` to a table in host memory."""
    if not torch.is_grad_enabled() or not any(each.requires_grad for each in unified):
        return
    if any(each.is_floating_point() or each.is_complex() for each in _tensors(results)):
        raise GradientPlaceError(name, str(device))


def _count_read(values: Any, device: torch.device, name: str) -> None:
    read_bytes = sum(each.nbytes for each in _tensors(values))
    record_move("memory", device.type, read_bytes, f"read by {name}")


def _split_indexes(
    facts: OperatorFacts, args: tuple[Any, ...]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The operands among the arguments by position, and the indexes, which follow the table."""
    counted: list[torch.Tensor] = []
    followers: list[torch.Tensor] = []
    for place, each in enumerate(args):
        (followers if place in facts.ignored else counted).extend(_tensors([each]))
    return counted, followers


def _choose_device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """The accelerator that one of the tensors lies on, or the current one."""
    found = next((each.device for each in tensors if each.device.type != "cpu"), current_device())
    assert found is not None
    return with_number(found)


def _run_on_host(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = _moved(args, kwargs, _to_host)
    with torch._C._DisableTorchDispatch():
        return operator(*args, **kwargs)


def _mover(kind: type[Operand], name: str, device: torch.device) -> Callable[[Any], Any]:
    """What gives an operator on `device` unified tensors, and indexes that follow them."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, kind):
            return _seen_or_copied(tensor, name, device)
        is_index = tensor.dtype in (torch.int64, torch.int32, torch.bool) and tensor.dim() > 0
        return tensor.to(device) if is_index and tensor.device.type == "cpu" else tensor

    return move


def _seen_or_copied(tensor: Operand, name: str, device: torch.device) -> torch.Tensor:
    """The values where they lie; where a GPU cannot read them there, a copy, if it has room for one."""
    seen = tensor.seen_by(device)
    if seen is not None:
        return seen
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        # What PyTorch keeps for tensors to come is given back when there is no room.
        free_bytes += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if tensor.nbytes > free_bytes:
            raise DeviceRoomError(name, tensor.nbytes, free_bytes, str(device))
    with torch._C._DisableTorchDispatch():
        return tensor.detach().to(device)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.device.type in ("cpu", "meta") else tensor.cpu()


def _moved(
    args: tuple[Any, ...], kwargs: dict[str, Any], move: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def each(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return move(value)
        if isinstance(value, list | tuple):
            return type(value)(map(each, value))
        return value

    return tuple(map(each, args)), {key: each(value) for key, value in kwargs.items()}


def _wrap(result: Any, like: Operand, *, is_new: bool = False) -> Any:
    """Tensors in `result` as unified ones: views of `like`, or new tables of its kind."""
    if isinstance(result, torch.Tensor):
        is_plain = type(result) is torch.Tensor and result.layout == torch.strided
        return like.as_unified(result, is_new=is_new) if is_plain else result
    if isinstance(result, list | tuple):
        return type(result)(_wrap(each, like, is_new=is_new) for each in result)
    return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _at(args: Sequence[Any], place: int) -> Any:
    return args[place] if place < len(args) else None


def _unified_name() -> str:
    name: str = torch._C._get_privateuse1_backend_name()
    return name


# Operators on rows that have no memory of their own.


def _select_rows(table: Operand, dimension: int, ids: torch.Tensor) -> torch.Tensor:
    if dimension % table.dim():
        raise table.refusal("index_select", "Only whole rows are read: index_select(0, ids).")
    return table.gather_plain(ids)


def _index(table: Operand, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    ids, *rest = indices
    if ids is None or any(each is not None for each in rest):
        raise table.refusal("index", "Only whole rows are read: u[ids], then index the rows.")
    if ids.dtype in (torch.bool, torch.uint8):
        if ids.dim() != 1 or len(ids) != table.shape[0]:
            raise table.refusal("index", "A mask must have one entry for each row.")
        ids = ids.nonzero()[:, 0]
    return table.gather_plain(ids)


def _embed(table: Operand, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return table.gather_plain(ids)


def _slice(
    table: Operand,
    dimension: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Operand:
    if dimension % table.dim():
        if (start or 0) == 0 and (stop is None or stop >= table.shape[dimension]) and step == 1:
            return table.same_rows()
        raise table.refusal("slice", "Only rows are cut on disk: u[a:b], then cut the rows read.")
    return table.cut_rows(range(table.shape[0])[start:stop:step])


def _select(table: Operand, dimension: int, index: int) -> torch.Tensor:
    if dimension % table.dim():
        raise table.refusal("select", "Only whole rows are read: u[ids], then u[ids][:, column].")
    index = range(table.shape[0])[index]
    return table.table.read(index, index + 1)[0]


def _same(table: Operand) -> Operand:
    return table.same_rows()


_BY_ROW: dict[Operator, Callable[..., Any]] = {
    _aten.index_select.default: _select_rows,
    _aten.index.Tensor: _index,
    _aten.embedding.default: _embed,
    _aten.slice.Tensor: _slice,
    _aten.select.int: _select,
    _aten.detach.default: _same,
    _aten.alias.default: _same,
}
