"""Keeps out of a broker's process what would hold its event loop while it is imported."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Final

_PANDAS: Final = "pandas"


class _WithoutPandas(MetaPathFinder):
    """Finds everything as before, but not pandas."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - as Python calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> None:
        # Not `None` in `sys.modules`: the import in Arrow, which is compiled, takes that for it.
        if fullname == _PANDAS:
            raise ModuleNotFoundError("a broker works without pandas", name=_PANDAS)


def refuse_pandas() -> None:
    """Let `import pandas` fail in this process from now on, as if it were not installed.

    Arrow imports it, where it is installed, when it first makes an array of Python values: that
    takes a third of a second. A broker does that for its first dead letter, and has no use for
    pandas.
    """
    sys.meta_path.insert(0, _WithoutPandas())
