"""Feature levels: what the brokers of a cluster may store and say to one another.

A release reads and writes a range of levels. A cluster is at one level, and no broker writes what
belongs to a higher one, so brokers of two releases work together, and going back to the earlier
release works. `quiver cluster upgrade` raises the level once every broker knows the next one, and
there is no way back from that (decision 0038).

A new format, entry, operation or record gets a new level here, and is written only in clusters that
have it. What a level brought never changes.
"""

from enum import IntEnum
from typing import Final, NamedTuple


class Level(IntEnum):
    """All levels that this build knows."""

    FIRST = 1
    IDLE_GROUPS = 2
    USERS = 2
    RESTORING = 2
    LETTERS = 2
    EXPIRY = 2
    STAYS = 2
    """These came in the same release."""

    @property
    def release(self) -> str:
        """The first release that knows it."""
        return _NOTES[self][0]

    @property
    def brings(self) -> str:
        """Its additions, for people."""
        return _NOTES[self][1]


_NOTES: Final = {
    Level.FIRST: ("0.2.0", "everything that release 0.2.0 stores and says"),
    Level.IDLE_GROUPS: (
        "0.3.0",
        (
            "unused shared groups are forgotten; expired messages are dropped; users; restoring; "
            "reasons of failures are kept; dead letters can go back to the group that failed; "
            "a replica that was moved away comes back as another member"
        ),
    ),
}


class Levels(NamedTuple):
    """The levels that a build knows, both ends included; 0 and 0 if it did not say."""

    low: int
    high: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.low <= level <= self.high

    def __str__(self) -> str:
        if not self.high:
            return "no feature level"
        if self.low == self.high:
            return f"feature level {self.low}"
        return f"feature levels {self.low} to {self.high}"


FEATURE_LEVEL_MIN: Final = Level.FIRST
FEATURE_LEVEL_MAX: Final = max(Level)
OWN_LEVELS: Final = Levels(int(FEATURE_LEVEL_MIN), int(FEATURE_LEVEL_MAX))


def why_unfit(level: int, release: str, levels: Levels, version: str) -> str:
    """Why a build of this version cannot take part in a cluster at this level; "" if it can.

    `release` is the first one that knows the level.
    """
    if level in levels:
        return ""
    said = f"the cluster is at feature level {level}, and release {version or 'unknown'}"
    if level > levels.high:
        return f"{said} knows {levels}: use release {release or 'of a broker that serves'} or later"
    return (
        f"{said} needs at least {levels.low}: use the release before it, run `quiver cluster "
        "upgrade`, and come back"
    )
