"""Files that appear whole: a reader sees what was there before or all of the new content.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as directory:
...     with whole_file(Path(directory) / "answer.txt") as file:
...         _ = file.write(b"42")
...     (Path(directory) / "answer.txt").read_text()
'42'
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file for this user alone that takes the place of `path` at the end, or leaves nothing behind."""
    descriptor, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    work = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        work.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            work.unlink(missing_ok=True)
        raise
