"""Where the topics end that a pipeline reads: asked in the background, every other second."""

import threading
from collections.abc import Mapping, Set
from typing import Final

import quivermq
from quivermq.errors import QuiverError

_PAUSE_SECONDS: Final = 2.0
_FIRST_SECONDS: Final = 0.2


class TopicEnds:
    """Looks at `topics`; what it saw is in `known`, each time as a whole."""

    def __init__(self, client: quivermq.Client) -> None:
        self.topics: Set[str] = frozenset()
        self.known: Mapping[str, Mapping[str, int]] = {}
        self._client = client
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipeline-ends", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(_PAUSE_SECONDS)

    def _run(self) -> None:
        while not self._closing.wait(_PAUSE_SECONDS if self.known else _FIRST_SECONDS):
            seen: dict[str, dict[str, int]] = {}
            try:
                for topic in sorted(self.topics):
                    held = self._client.offsets(topic).partitions
                    seen[topic] = {str(number): place.end for number, place in held.items()}
            except QuiverError:
                continue  # what was seen before is better than nothing
            self.known = seen
