"""The topics of one consumer: one, several by name, or all that a pattern matches."""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, NamedTuple

from quivermq.client.checks import checked_name
from quivermq.errors import InvalidRequest

TOPICS_MAX: Final = 256
"""Of one consumer: each has a request open at the leaders of its partitions."""

PATTERN_SECONDS: Final = 2.0
"""A topic that comes, or goes, is noticed by patterns within about so long."""

_DEAD_LETTERS: Final = ".dlq"
_SEVERAL: Final = (list, tuple, set, frozenset, dict)

Topics = str | Collection[str]
"""A topic, several, or a pattern, as users pass them."""

ListTopics = Callable[[], Awaitable[list[str]]]


class TopicChoice(NamedTuple):
    """Topics by name, or by a pattern."""

    names: tuple[str, ...]
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, topics: Topics, *, pattern: bool = False) -> "TopicChoice":
        """Check what a user passed."""
        if pattern:
            return cls((), _compiled(topics))
        if not isinstance(topics, _SEVERAL):
            return cls((checked_name("topic", topics),))  # type: ignore[arg-type]
        names = tuple(dict.fromkeys(checked_name("topic", name) for name in topics))
        if not 0 < len(names) <= TOPICS_MAX:
            raise InvalidRequest(f"name 1 to {TOPICS_MAX} topics, not {len(names):,}")
        return cls(names)

    @property
    def is_one(self) -> bool:
        """It is one topic, by name."""
        return len(self.names) == 1

    @property
    def seconds_max(self) -> float:
        """Past this it may mean other topics."""
        return float("inf") if self.pattern is None else PATTERN_SECONDS

    def matching(self, existing: Iterable[str]) -> list[str]:
        """Which of these topics the pattern matches as a whole, in the order of their names.

        Never the brokers' own, which begin with `_`, nor the dead letters `T.dlq` of a topic `T`
        that is there: a handler that fails at them would only make more.
        """
        if self.pattern is None:
            return list(self.names)
        there = set(existing)
        found = sorted(
            name
            for name in there
            if self.pattern.fullmatch(name)
            and not name.startswith("_")
            and not (name.endswith(_DEAD_LETTERS) and name.removesuffix(_DEAD_LETTERS) in there)
        )
        if len(found) > TOPICS_MAX:
            raise InvalidRequest(
                f"{self} matches {len(found):,} topics, and one consumer takes at most "
                f"{TOPICS_MAX}: share them between several"
            )
        return found

    def __str__(self) -> str:
        return ",".join(self.names) if self.pattern is None else f"/{self.pattern.pattern}/"


class TopicLookup:
    """Tells which topics a choice means at present; asks at most every `PATTERN_SECONDS`."""

    def __init__(self, list_topics: ListTopics, now: Callable[[], float]) -> None:
        self._list_topics = list_topics
        self._now = now
        self._existing: list[str] = []
        self._asked = float("-inf")

    async def find(self, choice: TopicChoice, *, is_fresh: bool = False) -> list[str]:
        """The topics; if they are to be fresh, by asking a broker in any case."""
        if choice.pattern is None:
            return list(choice.names)
        now = self._now()
        if is_fresh or now - self._asked >= PATTERN_SECONDS:
            self._existing = await self._list_topics()
            self._asked = now
        return choice.matching(self._existing)


def _compiled(pattern: Topics) -> re.Pattern[str]:
    if not isinstance(pattern, str) or not pattern:
        raise InvalidRequest(f"a pattern is one regular expression, as 'orders.*': {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRequest(f"{pattern!r} is no regular expression: {error}") from error
