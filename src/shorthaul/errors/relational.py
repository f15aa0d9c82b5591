"""Errors about relational programs, layers and their compiler."""

from __future__ import annotations

from shorthaul.errors.root import ShorthaulError


class RelationalProgramError(ShorthaulError, ValueError):
    """An operation of a relational layer got operands that do not go together."""

    def __init__(self, operation: str, problem: str, operands: str, line: object) -> None:
        where = f"\n  {line}" if line is not None else ""
        super().__init__(
            f"`{operation}` cannot be taken: {problem}.{where}\n  operands: {operands}"
        )


class LayerLanguageError(ShorthaulError, TypeError):
    """A relational layer was written with something that its language does not have."""

    def __init__(self, problem: str, instead: str, line: object) -> None:
        where = f"\n  {line}" if line is not None else ""
        super().__init__(f"{problem}.{where}\n  Instead: {instead}.")


class LayerArgumentError(ShorthaulError, ValueError, TypeError):
    """A relational layer was made or called with arguments that do not fit it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}.\n  {remedy[:1].upper()}{remedy[1:]}.")


class CompilerDefectError(ShorthaulError, RuntimeError):
    """The compiler of relational layers made something inconsistent: a defect of shorthaul."""

    def __init__(self, layer: str, stage: str, problem: str, line: object = None) -> None:
        where = f"\n  {line}" if line is not None else ""
        super().__init__(
            f"after `{stage}`, the compiled layer `{layer}` is inconsistent: {problem}.{where}\n"
            "  This is a defect of shorthaul, not of the layer: please report it with the layer's "
            "text.\n"
            '  Until it is fixed, set `layer.function.backend = "reference"`: plain PyTorch, slower.'
        )


class SecondDerivativeError(ShorthaulError, NotImplementedError):
    """The gradient of a compiled relational layer was differentiated again."""

    def __init__(self, layer: str) -> None:
        super().__init__(
            f"the gradient of the compiled layer `{layer}` was differentiated; it has a first "
            "derivative only.\n"
            '  Set `layer.function.backend = "reference"` for second derivatives: plain PyTorch, '
            "slower.\n"
            "  If that was not intended, omit create_graph=True."
        )


class CapturedDropoutError(ShorthaulError, RuntimeError):
    """A relational layer with dropout was captured in a CUDA graph."""

    def __init__(self, layer: str) -> None:
        super().__init__(
            f"the compiled layer `{layer}` draws its dropout anew for each call, and a CUDA graph that "
            "captured one would repeat the same choice at every replay.\n"
            "  Leave the layer out of the graph, or capture it in evaluation: layer.eval()."
        )
