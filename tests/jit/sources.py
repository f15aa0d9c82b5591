"""Small kernels, and compilers that are shell scripts."""

from pathlib import Path

import torch

from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
)

SCALE_FUNCTION = Function(
    "scale",
    (
        TensorArgument("x", torch.float32, ("n",)),
        NumberArgument("factor", "float64"),
        TensorArgument("out", torch.float32, ("n",), is_written=True),
        DimensionArgument("n"),
    ),
)
SCALE = CppSource(
    "scale",
    "void scale(const float* x, double factor, float* out, int64_t n) {\n"
    "  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] * factor);\n"
    "}",
    (SCALE_FUNCTION,),
)

# sizes[t] = how many threads thread t saw in its team; the others stay as they were.
TEAM = CppSource(
    "team",
    '#include "shorthaul/jit/include/parallel.h"\n'
    "void team(int64_t* sizes, int64_t, int64_t threads) {\n"
    "  shorthaul::on_each_thread(threads, [&](int64_t t, int64_t team) { sizes[t] = team; });\n"
    "}",
    (
        Function(
            "team",
            (
                TensorArgument("sizes", torch.int64, ("n",), is_written=True),
                DimensionArgument("n"),
                ThreadsArgument(),
            ),
        ),
    ),
)


def answer(number: int, name: str = "answer") -> CppSource:
    """A source whose function returns `number`; another number is another digest."""
    text = f"int64_t answer() {{ return {number}; }}"
    return CppSource(name, text, (Function("answer", (), returns="int64"),))


def write_script(path: Path, *lines: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def write_compiler(path: Path, *compile_lines: str, version: str = "fake++ 1.0") -> Path:
    """A script that tells its version, and otherwise does `compile_lines`.

    In them `$output` is the file after `-o`.
    """
    return write_script(
        path,
        f'[ "$1" = --version ] && echo "{version}" && exit 0',
        'command="$*"',
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && output=$2; shift; done',
        *compile_lines,
    )
