"""Listening where somebody else may listen already."""

from collections.abc import Iterator
from contextlib import contextmanager

from quivermq.errors import ConnectionFailed


@contextmanager
def listening_at(address: str) -> Iterator[None]:
    """The system's refusal to listen there, as one of ours."""
    try:
        yield
    except OSError as error:
        raise ConnectionFailed(
            f"cannot listen at {address}: {error.strerror or error}; stop what uses the address, "
            "or choose another"
        ) from error
