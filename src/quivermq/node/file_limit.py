"""How many files a broker may have open."""

import resource
from contextlib import suppress


def raise_file_limit() -> None:
    """A partition keeps a few files open; the usual limit of 1,024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
