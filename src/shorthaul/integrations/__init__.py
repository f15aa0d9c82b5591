"""shorthaul inside other people's training loops: one file per host.

`ShorthaulCallback` needs transformers, an optional extra, so it is imported at its first use.
"""

import typing

if typing.TYPE_CHECKING:
    from shorthaul.integrations.hugging_face import ShorthaulCallback

__all__ = ["ShorthaulCallback"]

if not typing.TYPE_CHECKING:  # checkers and editors read the import above instead

    def __getattr__(name: str) -> object:
        if name != "ShorthaulCallback":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from shorthaul.integrations.hugging_face import ShorthaulCallback

        return ShorthaulCallback
