"""The plan of a micro-batch, as Spark keeps it in a query's checkpoint: `offsets/<batch>`.

Lines: a version, the times and settings of the query, then the end of each source. A batch that is
planned again gets another time, so only the lines of the sources are compared.
"""

import os
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from quivermq.errors import QuiverError


class PlanChanged(QuiverError):
    """A batch that a sink holds was planned again, over other offsets of the sources."""


def plan_of(checkpoint_location: str | None, batch: int) -> str | None:
    """The plan of a batch; None if this process cannot read it."""
    folder = _folder(checkpoint_location)
    if folder is None:
        return None
    try:
        return (folder / "offsets" / str(batch)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def is_same_plan(one: str | None, other: str | None) -> bool:
    """Whether both end every source at the same offsets; True if one of them is unknown."""
    if one is None or other is None:
        return True
    return one.splitlines()[2:] == other.splitlines()[2:]


def restore_plan(checkpoint_location: str | None, batch: int, plan: str) -> None:
    """Make Spark run the batch by this plan when the query starts again."""
    folder = _folder(checkpoint_location)
    if folder is None:
        raise OSError(f"the checkpoint {checkpoint_location!r} cannot be written from here")
    place = folder / "offsets" / str(batch)
    handle, temporary = tempfile.mkstemp(prefix=f".{batch}.", suffix=".tmp", dir=place.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(plan)
        file.flush()
        os.fsync(file.fileno())
    # Hadoop keeps a checksum of the other plan beside the file. It is removed first: Hadoop reads
    # a file without one.
    place.with_name(f".{batch}.crc").unlink(missing_ok=True)
    Path(temporary).replace(place)


def check_plan(
    checkpoint_location: str | None, batch: int, recorded: str | None, sink: str
) -> None:
    """Raise `PlanChanged` if `batch` was planned again since `sink` took it.

    The recorded plan is restored, so the query resumes correctly when it is started again.
    """
    present = plan_of(checkpoint_location, batch)
    if recorded is None or is_same_plan(present, recorded):
        return
    restore_plan(checkpoint_location, batch, recorded)
    raise PlanChanged(
        f"batch {batch} is in {sink} already, but the checkpoint {checkpoint_location} was rolled "
        "back and the batch planned anew over other offsets. Its recorded plan was put back: start "
        "the query again, and it goes on without loss or repeats"
    )


def _folder(location: str | None) -> Path | None:
    """The checkpoint as a local folder; None if it is not local."""
    if not location:
        return None
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(location)
