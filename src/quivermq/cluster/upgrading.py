"""Raising the feature level of a cluster: whether every broker can, and the edit that does it."""

from dataclasses import replace
from typing import NamedTuple

from quivermq.cluster.catalog_view import View
from quivermq.cluster.edits import Edit
from quivermq.cluster.features import OWN_LEVELS, Level
from quivermq.cluster.records import CLUSTER_KEY, BrokerRecord, ClusterRecord
from quivermq.errors import InvalidRequest, NotLeader

_NAMED_MAX = 10


class Upgrade(NamedTuple):
    """From one level to another: the same if there is nothing to raise."""

    before: int
    level: int

    @property
    def levels(self) -> list[Level]:
        """Those that it adds."""
        return [level for level in Level if self.before < level <= self.level]


def plan_upgrade(view: View, to: int = 0) -> Upgrade:
    """The upgrade to this level; 0: the highest that any broker knows.

    `InvalidRequest`, saying which brokers are in the way, if not every broker knows it.
    """
    cluster = _founded(view)
    if to and to < cluster.level:
        raise InvalidRequest(
            f"the cluster is at feature level {cluster.level}, and a level is never lowered"
        )
    level = to or max([cluster.level, *(broker.levels.high for broker in view.brokers.values())])
    unfit = [broker for broker in view.brokers.values() if level not in broker.levels]
    if unfit and level != cluster.level:
        raise InvalidRequest(
            f"feature level {level} needs release {_release_of(view, level)} or later on every "
            f"broker, and {_named(unfit)}: upgrade or remove what runs an earlier one first"
            + _instead(view, cluster.level)
        )
    if level != cluster.level and level not in OWN_LEVELS:
        # Every broker registers at its start, so this one is not in the catalog yet.
        raise NotLeader(f"the broker that leads does not know feature level {level}; try again")
    return Upgrade(cluster.level, level)


def raise_level(view: View, to: int = 0) -> Edit | None:
    """The edit of `plan_upgrade`; None if the cluster is there already."""
    upgrade = plan_upgrade(view, to)
    if upgrade.level == upgrade.before:
        return None
    level = Level(upgrade.level)
    raised = replace(_founded(view), level=int(level), release=level.release)
    return Edit({CLUSTER_KEY: raised.to_json()})


def _founded(view: View) -> ClusterRecord:
    if view.cluster is None:
        raise NotLeader("the cluster is just being founded; try again")
    return view.cluster


def _instead(view: View, level: int) -> str:
    """A level between that of the cluster and the one that was wanted, if all know one."""
    common = min(broker.levels.high for broker in view.brokers.values())
    return f"; every broker knows {common}, which --to {common} raises to" if common > level else ""


def _release_of(view: View, level: int) -> str:
    """The first release with a level; one that only other builds know goes by what they run."""
    if level in OWN_LEVELS:
        return Level(level).release
    able = sorted(broker.version for broker in view.brokers.values() if level in broker.levels)
    return able[0] if able else "unknown"


def _named(brokers: list[BrokerRecord]) -> str:
    named = [
        f"broker {broker.id} runs {broker.version or 'an unknown release'}, which knows "
        f"{broker.levels}"
        for broker in brokers[:_NAMED_MAX]
    ]
    more = len(brokers) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")
