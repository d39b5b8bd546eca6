"""Keeps one client per process and cluster: Spark's Python workers run many tasks."""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Mapping
from typing import Final

import quivermq
from quivermq.errors import InvalidRequest, QuiverError

DEFAULT_SERVERS: Final = "127.0.0.1:7600"
TIMEOUT_SECONDS: Final = 60.0
"""Long enough for a broker to restart or a leader to be elected during a query."""

_DAEMON: Final = "pyspark.daemon"
"""The module whose forks run tasks, plans and commits."""

_clients: dict[tuple[str, str | None, str | None, float, str | None], quivermq.Client] = {}
_connecting = threading.Lock()


def client_of(options: Mapping[str, str]) -> quivermq.Client:
    """The client that the options `servers`, `token`, `tls` (a file with the CA's certificate, on
    every machine of Spark), `timeout` (in seconds) and `zone` (default: that of the machine where
    the task runs, `QUIVER_ZONE`) ask for."""
    servers = options.get("servers") or os.environ.get("QUIVER_SERVERS") or DEFAULT_SERVERS
    token, tls = options.get("token") or None, options.get("tls") or None
    timeout, zone = _seconds(options.get("timeout")), options.get("zone") or None
    with _connecting:
        found = _clients.get((servers, token, tls, timeout, zone))
        if found is None:
            try:
                found = quivermq.connect(servers, token=token, tls=tls, timeout=timeout, zone=zone)
            except QuiverError as error:
                # Spark prints the traceback before the error; this error needs none.
                raise error.with_traceback(None) from None
            _clients[servers, token, tls, timeout, zone] = found
            if len(_clients) == 1:
                _spare_modules_from_collection()
            atexit.register(found.close)
        return found


def _spare_modules_from_collection() -> None:
    """Keep the garbage collector of a worker from walking all imported modules after each task.

    Spark's daemon collects after every task: 48 ms for what PySpark, Arrow and we import, several
    times what a small task takes (decision 0069). Only once in a process: the functions of later
    tasks are garbage when those end.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name == _DAEMON:
        gc.freeze()


def _renew_lock() -> None:
    global _connecting  # noqa: PLW0603  (the child's own)
    _connecting = threading.Lock()


# A worker that is forked while another thread connects must not inherit a held lock.
os.register_at_fork(after_in_child=_renew_lock)


def _seconds(text: str | None) -> float:
    if not text:
        return TIMEOUT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidRequest(f"option timeout must be a number of seconds: {text!r}")
    return seconds
