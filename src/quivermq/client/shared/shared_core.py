"""Lends one transport, and one map of the cluster, to the small subscriptions of a client.

With a connection each, a hundred subscriptions of one program cost a hundred writes and reads for
every message of their topic, and a hundred questions who leads it (decision 0068). Those that fetch
much ahead have a connection of their own, so that no other waits behind their megabytes.
"""

from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from quivermq.client import fork_safety
from quivermq.client.core import Core
from quivermq.client.shared.prefetch import SubscribeOptions

SHARED_PREFETCH_MAX: Final = 1_000
BORROWERS_MAX: Final = 64
"""Each may poll every partition by itself while none has a leader, and a broker takes 1,024 open
requests from a connection."""


class SharedCore:
    """Lends cores whose requests take the same connections. Lives on one event loop."""

    def __init__(self, make: Callable[[], Core]) -> None:
        self._make = make
        self._lender: _Lender | None = None
        fork_safety.watch(self)

    def core_for(self, options: SubscribeOptions) -> Core:
        """A core for a subscription, to be closed."""
        is_one_topic = isinstance(options.topics, str) and not options.pattern
        if options.prefetch > SHARED_PREFETCH_MAX or not is_one_topic:
            return self._make()
        lender = self._lender
        if lender is None or not 0 < len(lender.borrowers) < BORROWERS_MAX:
            lender = self._lender = _Lender(self._make())
        return lender.lend()

    def after_fork(self) -> None:
        """The connections are the parent's."""
        self._lender = None


class _Lender:
    def __init__(self, core: Core) -> None:
        self.borrowers: WeakSet[Core] = WeakSet()
        """One that never came to be used is not waited for."""
        self._core = core

    def lend(self) -> Core:
        async def take_back() -> None:
            if borrowed in self.borrowers:
                self.borrowers.remove(borrowed)
                if not self.borrowers:
                    await self._core.close()

        borrowed = self._core.share(take_back)
        self.borrowers.add(borrowed)
        return borrowed
