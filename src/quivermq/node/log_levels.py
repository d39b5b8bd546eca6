"""Changes what is logged while a broker runs, of all its loggers or of one.

Loggers belong to the process. A level that was set at run time is forgotten when it ends.
"""

import logging
from typing import Final

from quivermq.errors import InvalidRequest, NotLeader
from quivermq.node.metadata import Metadata
from quivermq.node.service import Handler
from quivermq.wire import proto

logger = logging.getLogger("quivermq.logs")

ROOT: Final = "quivermq"
DEFAULT: Final = "default"
"""As the broker was started."""
LEVELS: Final = ("debug", "info", "warning", "error")


class LogLevels:
    """The levels of this process, and the request that changes them."""

    def __init__(self, node_id: int, configured: str, metadata: Metadata) -> None:
        self._node_id = node_id
        self._configured = configured
        self._metadata = metadata

    def handlers(self) -> dict[str, Handler]:
        return {"set_log_level": self.set_log_level}

    async def set_log_level(self, request: proto.Request) -> proto.Response:
        body = request.set_log_level
        if body.broker not in (0, self._node_id):
            self._metadata.view.broker(body.broker)
            # The service passes it on to that broker.
            raise NotLeader(f"broker {body.broker} has its own log", leader=body.broker)
        if body.level:
            self.change(body.logger, body.level)
        return proto.Response(
            log_levels=proto.LogLevels(broker=self._node_id, levels=levels_in_force())
        )

    def change(self, name: str, level: str) -> None:
        """Set the level of a logger; "" is all of them. Raises `InvalidRequest`."""
        full = _full_name(name)
        if level not in (*LEVELS, DEFAULT):
            raise InvalidRequest(
                f"{level[:50]!r} is not a level: choose {', '.join(LEVELS)} or {DEFAULT}"
            )
        if level != DEFAULT:
            logging.getLogger(full).setLevel(level.upper())
        elif full == ROOT:
            for each in _known():
                logging.getLogger(each).setLevel(logging.NOTSET)
            logging.getLogger(ROOT).setLevel(self._configured.upper())
        else:
            logging.getLogger(full).setLevel(logging.NOTSET)
        logger.warning("the level of %s is %s from here on", full, level)

    def toggle_debug(self) -> None:
        """Log everything, or as the broker was started, in turns: for a signal."""
        is_debug = logging.getLogger(ROOT).level == logging.DEBUG
        self.change(ROOT, DEFAULT if is_debug else "debug")


def levels_in_force() -> dict[str, str]:
    """Of all, and of the loggers that have a level of their own."""
    own = [name for name in _known() if logging.getLogger(name).level != logging.NOTSET]
    return {
        name: logging.getLevelName(logging.getLogger(name).getEffectiveLevel()).lower()
        for name in sorted({ROOT, *own})
    }


def _known() -> list[str]:
    # Not those that are only the beginning of another's name: to ask for one would make it.
    return sorted(
        name
        for name, found in logging.root.manager.loggerDict.items()
        if name.startswith(f"{ROOT}.") and isinstance(found, logging.Logger)
    )


def _full_name(name: str) -> str:
    """The logger of a name as people write it: `peers` is `quivermq.peers`."""
    if name in ("", ROOT):
        return ROOT
    full = name if name.startswith(f"{ROOT}.") else f"{ROOT}.{name}"
    if full not in _known():
        known = ", ".join(each.removeprefix(f"{ROOT}.") for each in _known())
        raise InvalidRequest(f"there is no logger {name[:100]!r}; there are: {known}")
    return full
