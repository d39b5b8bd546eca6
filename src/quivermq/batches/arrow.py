"""Arrow, imported when it is first used.

With NumPy it takes longer to import than a command that only administers takes in all. Modules that
such a command imports take `pa` and `pc` from here, and must not use them at their top level;
clients that a program makes load Arrow at once, so that no message waits for it.
"""

from importlib import import_module
from types import ModuleType
from typing import Any, Final


def _import_at_first_use(name: str) -> Any:
    """A module whose attributes are those of the named one, which the first of them imports."""
    lazy = ModuleType(name)

    def load(attribute: str) -> Any:
        value = getattr(import_module(name), attribute)
        # From here on Python finds it without a call.
        setattr(lazy, attribute, value)
        return value

    lazy.__getattr__ = load  # type: ignore[method-assign]
    return lazy


pa: Final = _import_at_first_use("pyarrow")
pc: Final = _import_at_first_use("pyarrow.compute")


def load_arrow() -> None:
    """Import everything that is needed to encode and decode batches."""
    import_module("quivermq.batches.encode")
