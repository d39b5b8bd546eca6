"""The fence around a log's writes: once one of them fails, no other is let through."""

from types import TracebackType

from quivermq.errors import StorageFailed, StorageFull


class Fence:
    """A context for writes. Closes for good when a write leaves its outcome unknown.

    A full disk is let pass if the write that met it was undone; then writes go on.
    """

    __slots__ = ("_folder", "_reason")

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._reason = ""

    def __enter__(self) -> None:
        if self._reason:
            raise StorageFailed(
                f"{self._folder} takes no more writes since this: {self._reason}; "
                "check the disk, then restart the broker"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, StorageFailed):
            return
        if isinstance(error, StorageFull) and error.undone:
            return
        self._reason = str(error)
        raise StorageFailed(f"{self._folder} is fenced: {error}") from error
