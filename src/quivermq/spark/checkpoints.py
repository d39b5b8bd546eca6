"""The plan of a micro-batch, as Spark keeps it in a query's checkpoint: `offsets/<batch>`.

Lines: a version, what holds for the whole query (times, settings), then the end of each source. A
plan that is made anew for the same batch has another time, so only the sources' lines count.
"""

import os
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from quivermq.errors import QuiverError


class PlanChanged(QuiverError):
    """A batch that a sink holds was planned anew, over other offsets of the sources."""


def plan_of(checkpoint_location: str | None, batch: int) -> str | None:
    """The plan of a batch; None if it cannot be read from here."""
    folder = _folder(checkpoint_location)
    if folder is None:
        return None
    try:
        return (folder / "offsets" / str(batch)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def is_same_plan(one: str | None, other: str | None) -> bool:
    """Whether both read the same of every source; also if one of them is not known."""
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
    # The checksum that Hadoop keeps beside a file is that of the other plan. Gone first: a file
    # without one is read all the same.
    place.with_name(f".{batch}.crc").unlink(missing_ok=True)
    Path(temporary).replace(place)


def check_plan(
    checkpoint_location: str | None, batch: int, recorded: str | None, sink: str
) -> None:
    """Raise `PlanChanged` if `batch` was planned anew since `sink` took it with another plan.

    The plan that holds is put back, so the query goes on exactly when it is started again.
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
    """The checkpoint as a local folder; None if it is elsewhere."""
    if not location:
        return None
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(location)
