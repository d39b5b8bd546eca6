"""One process at a time over one checkpoint: two would undo each other's plans."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from quivermq.errors import InvalidRequest

_FILE: Final = "running.pid"


@contextmanager
def one_at_a_time(checkpoint: str, name: str) -> Iterator[None]:
    """Hold the checkpoint; raises `InvalidRequest` if another process does.

    The lock ends with the process, however that ends. A checkpoint in a store is not locked: there
    Spark itself refuses the second, though only after some batches.
    """
    if "://" in checkpoint:
        yield
        return
    folder = Path(checkpoint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _FILE).open("a+")
    except OSError as error:
        raise InvalidRequest(f"the checkpoint {checkpoint} cannot be written: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise InvalidRequest(
                f"pipeline {name} is running already, as process {pid}: stop that first"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
