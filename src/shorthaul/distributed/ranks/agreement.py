"""What all ranks must agree on before they go on, and how one rank's error reaches the others.

>>> from shorthaul.distributed.ranks.world import World
>>> share_problem(Wire(World(0, 1), None, None), None, "part 0")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shorthaul.distributed.ranks.line import Line
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.errors import PeerError, RankDisagreementError

Result = TypeVar("Result")
_REMEDY = "Mend what that rank says; all ranks have stopped at the same place."


def share_problem(
    wire: Wire, problem: BaseException | None, parts: str, *, is_known_by_all: bool = False
) -> None:
    """Raise on every rank when there is a problem on any: its own error there, `PeerError` elsewhere.

    `is_known_by_all` says that every rank knows already that one of them has a problem, so that
    nothing is asked first.
    """
    if not is_known_by_all:
        flags = wire.gather_numbers([problem is not None])
        if not any(flag for (flag,) in flags):
            return
    said = "" if problem is None else f"{type(problem).__name__}: {problem}"
    texts = wire.gather_texts(f"{parts}\n{said}")
    wire.is_agreed = True
    if problem is not None:
        raise problem
    blamed = []
    for rank, text in enumerate(texts):
        whose, _, message = text.partition("\n")
        if message:
            told = message.replace("\n", "\n    ")
            blamed.append(f"rank {rank} ({whose}): {told}")
    raise PeerError(
        "another rank had an error", wire.world.rank, parts, wire.where, blamed, _REMEDY
    )


def read_together(line: Line, what: str, parts: str, read: Callable[[], Result]) -> Result:
    """What `read` gives, without any exchange of its own; what it raises on one rank is known to all."""
    problem: Exception | None = None
    found: list[Result] = []
    try:
        found.append(read())
    except Exception as error:
        problem = error
    line.run(what, lambda wire: share_problem(wire, problem, parts))
    return found[0]


def require_equal(
    wire: Wire, what: str, mine: str, remedy: str, *, shown: str | None = None
) -> None:
    """Raise on every rank unless all say the same; `shown` is how an error puts what this rank says."""
    texts = wire.gather_texts(f"{mine}\0{mine if shown is None else shown}")
    if len({text.partition("\0")[0] for text in texts}) > 1:
        wire.is_agreed = True
        told = {rank: text.partition("\0")[2] for rank, text in enumerate(texts)}
        raise RankDisagreementError(what, told, remedy)
