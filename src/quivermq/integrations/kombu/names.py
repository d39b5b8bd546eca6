"""Names of topics and groups that stand for queues, exchanges and bindings.

Names of queues may have any characters, as in `celery@host.celery.pidbox`; names of topics may not.
Other characters become `_x` and their bytes in hexadecimal; a literal `_x` is escaped too, so that
no two queues share a topic. What begins with `_`, or ends in `.dlq`, is never a queue.
"""

import re
from typing import Final, NamedTuple

GROUP: Final = "celery"
"""The group of every queue: all its consumers compete."""

_ESCAPED: Final = re.compile(r"_x|^_|[^A-Za-z0-9._-]|\.(?=dlq$)|^d(?=lq$)", re.DOTALL)
_ESCAPE: Final = re.compile(r"(?:_x[0-9a-f]{2})+")
_BETWEEN: Final = "_x."
"""No escape: between the parts of a binding."""
_FIRST: Final = "of."
"""Names of groups that begin with `_` are reserved."""


class TopicNames(NamedTuple):
    """The names of one virtual host."""

    virtual_host: str

    def queue(self, queue: str) -> str:
        """The topic that holds the messages of a queue."""
        return f"{self.virtual_host}.{escape(queue)}"

    def exchange(self, exchange: str) -> str:
        """The topic whose groups are the bindings of an exchange."""
        return f"{self.virtual_host}._exchange.{escape(exchange)}"

    @property
    def expiring(self) -> str:
        """The topic whose groups are the queues that expire."""
        return f"{self.virtual_host}._expiring"


class Binding(NamedTuple):
    """Messages with a routing key, or a pattern of these, go to a queue."""

    routing_key: str
    queue: str

    @property
    def group(self) -> str:
        """The name of the group that stands for it."""
        return f"{_FIRST}{escape(self.routing_key)}{_BETWEEN}{escape(self.queue)}"

    @classmethod
    def of_group(cls, group: str) -> "Binding | None":
        """The binding that a group stands for; None: it is no binding."""
        key, between, queue = group.removeprefix(_FIRST).rpartition(_BETWEEN)
        return cls(unescape(key), unescape(queue)) if between else None


def group_of_queue(queue: str) -> str:
    """The group that stands for a queue that expires."""
    return f"{_FIRST}{escape(queue)}"


def queue_of_group(group: str) -> str:
    """The queue that such a group stands for."""
    return unescape(group.removeprefix(_FIRST))


def escape(name: str) -> str:
    """A name of any characters in those of topics and groups."""
    return _ESCAPED.sub(_hexadecimal, name)


def unescape(name: str) -> str:
    """The name that `escape` was given."""
    return _ESCAPE.sub(_text, name)


def _hexadecimal(found: re.Match[str]) -> str:
    text = found[0]
    # Of a literal `_x`, to escape the first character is enough.
    first, rest = ("_", "x") if text == "_x" else (text, "")
    return "".join(f"_x{byte:02x}" for byte in first.encode("utf-8", "surrogatepass")) + rest


def _text(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("_x", "")).decode("utf-8", "surrogatepass")
