"""The command line, one file per verb: `shorthaul run`, `doctor`, `cache`, `explain`, `bench`, `demo`.

Nothing here imports torch until a verb needs it, so that `shorthaul --help` answers at once.
"""

from shorthaul.cli.program import main

__all__ = ["main"]
