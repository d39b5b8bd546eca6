"""The commit of one batch in the driver: decide which rows count, then publish them."""

from collections.abc import Mapping, Sequence

import quivermq
from quivermq.spark.checkpoints import check_plan, plan_of
from quivermq.spark.decisions import Decision, DecisionLog
from quivermq.spark.publishing import publish
from quivermq.spark.staged_runs import Run, Target, joined


class Committing:
    """What a driver does when all tasks of a batch have staged their rows.

    It may die at any point. Who commits the batch after it, or beside it, comes to the same end.
    """

    def __init__(
        self, client: quivermq.Client, query: str, checkpoint_location: str | None
    ) -> None:
        self.client = client
        self.query = query
        self._location = checkpoint_location

    def commit(
        self,
        batch: int,
        parts: Sequence[Mapping[Target, tuple[Run, ...]]],
        stage: str | None = None,
    ) -> None:
        """Commit a batch that consists of what tasks staged, in the query's stage if none is named.

        Decisions are published in their order, whoever made them: brokers take nothing of one after
        something of the next.
        """
        staged = joined(parts)
        log = DecisionLog.opened(self.client, self.query, create=bool(staged))
        if log is None:
            return  # there are no rows, and never were any
        decision = log.of(batch)
        if decision is None:
            decision = log.decide(batch, staged, plan_of(self._location, batch), stage)
        check_plan(self._location, batch, decision.plan, f"the topics of query {self.query}")
        for earlier in log.unpublished(before=decision.offset):
            self.publish(log, earlier)
        self.publish(log, decision)

    def publish(self, log: DecisionLog, decision: Decision) -> None:
        """Publish what was decided."""
        publish(self.client, log, decision)
