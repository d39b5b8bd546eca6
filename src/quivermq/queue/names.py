"""Names that users give to topics and groups, and the rule that they all keep."""

import re
from typing import Final

from quivermq.errors import InvalidRequest

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def check_name(what: str, name: object) -> None:
    """Raise `InvalidRequest` unless `name` can be the name of a topic or group."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise InvalidRequest(
            f"{what} must be 1 to 200 of A-Z a-z 0-9 . _ - and not . or ..: {str(name)[:200]!r}"
        )
