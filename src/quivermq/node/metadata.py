"""The catalog of the cluster: how this broker reads and changes it, in the metadata partition."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import quivermq
from quivermq.cluster import CLUSTER_KEY, OWN_LEVELS, Edit, View, level_of, node_of, why_unfit
from quivermq.errors import (
    Corrupt,
    Forbidden,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    QuiverError,
    UnsupportedFormat,
)
from quivermq.node.hosted_replica import HostedReplica
from quivermq.replica import Replica

logger = logging.getLogger("quivermq.metadata")

_ATTEMPTS_MAX: Final = 20


class Metadata:
    """The catalog of the cluster, read and changed through the metadata replica that runs here."""

    def __init__(
        self,
        on_change: Callable[[], None],
        on_unfit: Callable[[UnsupportedFormat], None] = lambda _: None,
    ) -> None:
        self.view = View()
        self.level = 0
        """The feature level by which this broker writes: that in its data directory."""
        self.unfit: UnsupportedFormat | None = None
        """Why this build cannot act on the catalog: the cluster is at a level that it lacks."""
        self.hosted: HostedReplica | None = None
        self._on_change = on_change
        self._on_unfit = on_unfit
        self._lock = asyncio.Lock()
        self._unreadable = 0
        """The last version that could not be read."""

    def run_on(self, hosted: HostedReplica) -> None:
        self.hosted = hosted
        hosted.after = self.refresh
        self.refresh()

    def stop(self) -> None:
        self.hosted = None
        self.view = View()
        self._unreadable = 0

    def refresh(self) -> None:
        """Look whether the catalog changed."""
        catalog = self.hosted.replica.catalog if self.hosted else None
        # A replica that begins again replays its log, and knows less than was known for a while.
        if catalog is None or catalog.version <= max(self.view.version, self._unreadable):
            return
        try:
            _check_level(catalog.values)
            self.view = self.view.updated(catalog.version, catalog.values)
        except UnsupportedFormat as error:
            self._unreadable = catalog.version
            self.unfit = error
            self._on_unfit(error)
        except Corrupt as error:
            # It is what the majority agreed on: go on by what is known.
            self._unreadable = catalog.version
            logger.critical("version %d of the catalog is not readable: %s", catalog.version, error)
        else:
            self._on_change()

    @property
    def leader(self) -> int:
        """The node that leads the metadata partition; 0 if that is not known."""
        return node_of(self.hosted.replica.leader) if self.hosted else 0

    @property
    def is_leader(self) -> bool:
        return self.hosted is not None and self.hosted.replica.is_serving

    async def catch_up(self) -> None:
        """Know all that the catalog said when this was called; raises if no quorum answers."""
        if self.hosted is None:
            raise NotLeader("this broker is not a member of a cluster yet; try again")
        await self.hosted.call(Replica.read)
        self.refresh()

    async def edit(self, build: Callable[[View], Edit | None]) -> View:
        """Change the catalog. `build` may be called again with a later view, and may refuse.

        Returns the view with the change in it; the one at hand if there was nothing to change.
        """
        async with self._lock:
            for _ in range(_ATTEMPTS_MAX):
                hosted = self.leading_replica()
                view = self.view
                try:
                    edit = build(view)
                except QuiverError as error:
                    # Also a refusal counts only if it is that of the latest view: a broker that
                    # has just come to lead, or does not any more, may not know all others yet.
                    # A broker that is not let in is told so at once: it may be the missing one.
                    if error.retriable or isinstance(error, Forbidden):
                        raise
                    if await self._is_latest(hosted, view):
                        raise
                    continue
                if edit is None:
                    if await self._is_latest(hosted, view):
                        return view
                elif await self._propose(hosted, view, edit):
                    return self.view
        raise Overloaded("the catalog changes too often; try again")

    async def _is_latest(self, hosted: HostedReplica, view: View) -> bool:
        """Whether a quorum confirms that no other leader has a later view."""
        await hosted.call(Replica.read)
        self.refresh()
        return self.view is view

    def leading_replica(self) -> HostedReplica:
        """The replica, if it is led here; raises `NotLeader`, or `NotEnoughReplicas`."""
        hosted = self.hosted
        if hosted is not None and hosted.replica.is_serving:
            return hosted
        if hosted is not None and hosted.is_abandoned:
            raise NotEnoughReplicas(
                "the metadata partition has no leader: a majority of its brokers cannot be reached"
            )
        raise NotLeader("this broker does not lead the metadata partition", leader=self.leader)

    async def _propose(self, hosted: HostedReplica, view: View, edit: Edit) -> bool:
        put, delete = edit.put, edit.delete
        now_ms = hosted.now_ms()
        try:
            await hosted.call(
                lambda replica, token: replica.change_catalog(
                    token, view.version, put, delete, now_ms
                ),
            )
        except Overloaded as error:
            logger.debug("an edit of version %d came too late: %s", view.version, error)
            self.refresh()
            return False
        self.refresh()
        return True


def _check_level(values: Mapping[str, Any]) -> None:
    """Before anything else of a catalog is read: the rest may be of a later release."""
    if CLUSTER_KEY not in values:
        return
    level, release = level_of(values[CLUSTER_KEY])
    if why := why_unfit(level, release, OWN_LEVELS, quivermq.__version__):
        raise UnsupportedFormat(why)
