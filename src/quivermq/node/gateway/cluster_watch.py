"""Asks brokers, every second, which brokers there are and who may use the cluster.

A gateway that hears of no broker is not ready. Users that were removed, got another token or lost
a grant are disconnected by the next answer; the brokers refuse what they ask before that.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final

from quivermq.client import Attempts, Router
from quivermq.cluster import UserRecord, View
from quivermq.errors import ConnectionFailed, Corrupt, NotEnoughReplicas, QuiverError
from quivermq.node.tasks import end_tasks
from quivermq.wire import proto

logger = logging.getLogger("quivermq.gateway")

_LOOK_S: Final = 1.0
_ANSWER_S: Final = 2.0
_FIRST_ANSWER_S: Final = 0.5
"""Whoever starts a gateway with a wrong address is told soon."""


class ClusterWatch:
    """The cluster as brokers describe it."""

    def __init__(self, router: Router, *, has_users: bool) -> None:
        self.cluster_id = ""
        self.leader = 0
        self.failure: QuiverError | None = ConnectionFailed("no broker has answered yet")
        """Why nothing can be served; None: brokers answer."""
        self.is_current = False
        """Whether the users are known, as they were after this gateway was started."""
        self._router = router
        self._has_users = has_users
        self.on_users: Callable[[View], None] = lambda _: None
        """Told of users that have changed."""
        self._fingerprint = b""
        self._task: asyncio.Task[None] | None = None
        self.looked = asyncio.Event()
        """Set once it has asked, and was answered or not."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_looking(), name="cluster watch")

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self._look()
            except QuiverError as error:
                self._fail(error)
            except Exception as error:
                logger.exception("the cluster cannot be watched, and is asked again")
                self._fail(QuiverError(repr(error)))
            self.looked.set()
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        query = proto.MapQuery(brokers_only=True)
        found = (await self._ask(proto.Request(map=query))).map
        self._router.map.update(found, [], self._router.transport.now())
        self.cluster_id, self.leader = found.cluster_id, found.leader
        if self._has_users:
            await self.learn_users()
        if not found.leader:
            raise NotEnoughReplicas("the metadata partition has no leader")
        if self.failure is not None:
            logger.info("brokers of cluster %s answer", self.cluster_id)
        self.failure = None

    def _fail(self, error: QuiverError) -> None:
        if self.failure is None or not self.looked.is_set():
            logger.warning("no client can be served: %s", error)
        self.failure = error

    async def learn_users(self) -> None:
        """Know all users that the catalog has when this is called; raises if no broker that knows
        them answers."""
        ask = proto.Request(list_user_records=proto.ListUserRecords(fingerprint=self._fingerprint))
        found = (await self._ask(ask)).user_records_listed
        if found.fingerprint != self._fingerprint:
            self.on_users(_view_of(found))
            self._fingerprint = found.fingerprint
        self.is_current = True

    async def _ask(self, request: proto.Request) -> proto.Response:
        wait_s = _ANSWER_S if self.looked.is_set() else _FIRST_ANSWER_S
        attempts = Attempts(self._router.transport, wait_s, "asking for the cluster")
        return await self._router.ask_any(request, attempts)


def _view_of(found: proto.UserRecordsListed) -> View:
    """The part of the catalog that users are."""
    view = View()
    try:
        records = [UserRecord.from_json(json.loads(record)) for record in found.records]
    except ValueError as error:
        raise Corrupt("the records of users are no JSON") from error
    view.users = {record.name: record for record in records}
    return view
