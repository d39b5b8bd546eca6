"""How far a query was when it ended, from its checkpoint: Spark tells of batches only."""

import json
from pathlib import Path
from typing import Any


def last_offsets(checkpoint: str) -> list[dict[str, Any]]:
    """The end offsets of the last finished batch, by source; none if that cannot be known.

    A file of `offsets` has a version, a line of settings, and a line for each source.
    """
    folder = Path(checkpoint)
    try:
        done = [int(each.name) for each in (folder / "commits").iterdir() if each.name.isdecimal()]
        lines = (folder / "offsets" / str(max(done))).read_text().splitlines()
        found = [json.loads(line) for line in lines[2:] if line.startswith("{")]
    except (OSError, ValueError):
        return []
    return [each for each in found if isinstance(each, dict)]
