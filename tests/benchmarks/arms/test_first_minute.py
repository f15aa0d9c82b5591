"""When the arm of the first minute holds a model for settled."""

from collections.abc import Callable

from benchmarks.arms.first_minute import settle


def make_model(compiled: list[bool], decided: list[int]) -> tuple[Callable[..., object], ...]:
    """A step, its choices and an idle compiler, as they are after each step."""
    steps = [0]

    def step() -> None:
        steps[0] += 1

    def after(values: list) -> Callable[[], object]:
        return lambda: values[min(steps[0], len(values) - 1)]

    return step, after(decided), after(compiled), lambda: steps[0]


def test_a_layer_that_never_decides_is_not_waited_for() -> None:
    step, decided, idle, count = make_model([False, True], [0, 0, 2])
    settle(step, decided, idle)
    # Busy before the first, decided by the second; the third changed nothing.
    assert count() == 3


def test_nothing_to_compile_and_nothing_to_decide() -> None:
    step, decided, idle, count = make_model([True], [0])
    settle(step, decided, idle)
    assert count() == 1
