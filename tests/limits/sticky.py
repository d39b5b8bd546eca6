"""Limits of sticky groups, in the catalog of the metadata group's replicas."""

from quivermq.cluster import Edit, View
from quivermq.cluster.sticky import Enrolled, StickyChanges
from quivermq.cluster.sticky_edits import Regrouping, StickyName, regroup
from quivermq.errors import InvalidRequest, Overloaded
from quivermq.replica import Changed
from tests.cluster.catalogs import broker, view_of, with_topic
from tests.limits.stage import Scenario

BIG = StickyName("large", "big")


class Sticky(Scenario):
    """As many sticky groups as there may be; one of them with as many members and partitions."""

    name = "sticky"
    limits = (
        "cluster/sticky.py:MEMBERS_MAX",
        "cluster/sticky.py:STICKY_PARTITIONS_MAX",
        "cluster/sticky_edits.py:STICKY_GROUPS_MAX",
    )

    def fill(self) -> None:
        stage = self.stage
        self.members, self.partitions, self.groups = (
            stage.limit("cluster.sticky_edits", name)
            for name in ("MEMBERS_MAX", "STICKY_PARTITIONS_MAX", "STICKY_GROUPS_MAX")
        )
        view = with_topic(view_of([broker(1)]), "small")
        view = with_topic(view, "large", self.partitions)
        view = with_topic(view, "larger", self.partitions + 1)
        self.known = View(0, {})
        self.change(Edit(dict(view.values)))
        everybody = StickyChanges()
        for member in range(1, self.members + 1):
            everybody.join(member, Enrolled(f"member-{member}", 10_000))
        self.regroup({BIG: everybody})
        groups = {StickyName("small", f"g{number}"): joined(1) for number in range(self.groups - 1)}
        while groups:
            for name in self.regroup(groups).done:
                del groups[name]

    def view(self) -> View:
        """What a broker makes of the catalog: from what it knew, if it knew something."""
        catalog = self.stage.leader.replica.catalog
        assert catalog is not None
        known = self.known
        self.known = self.stage.timed(
            "view", lambda: known.updated(catalog.version, dict(catalog.values))
        )
        return self.known

    def regroup(self, changes: dict[StickyName, StickyChanges]) -> Regrouping:
        view = self.view()
        found = self.stage.timed("regroup", lambda: regroup(view, changes))
        if found.edit is not None:
            self.change(found.edit)
        return found

    def change(self, edit: Edit) -> None:
        stage = self.stage
        leader, token, now_ms = stage.leader, stage.group.token(), stage.group.now_ms
        catalog = leader.replica.catalog
        assert catalog is not None
        act = leader.replica.change_catalog
        stage.timed("change", lambda: act(token, catalog.version, edit.put, edit.delete, now_ms))
        stage.group.settle()
        assert leader.answers.pop(token) == Changed()

    def is_full(self) -> None:
        more, other, wide = BIG, StickyName("small", "one-more"), StickyName("larger", "g")
        # Whoever starts knows nothing of the catalog yet, and reads it before it serves anybody.
        catalog = self.stage.leader.replica.catalog
        assert catalog is not None
        self.known = View(catalog.version, dict(catalog.values))
        found = self.regroup({more: joined(self.members + 1)})
        assert isinstance(found.refused[more], Overloaded)
        found = self.regroup({other: joined(1)})
        assert isinstance(found.refused[other], Overloaded)
        found = self.regroup({wide: joined(1)})
        assert isinstance(found.refused[wide], InvalidRequest)

    def go_on(self) -> None:
        gone = StickyChanges()
        gone.leave(1)
        assert self.regroup({BIG: gone}).done
        assert self.regroup({StickyName("small", "g0"): gone}).done
        assert self.regroup({BIG: joined(self.members + 1)}).done
        assert self.regroup({StickyName("small", "one-more"): joined(1)}).done
        big = next(group for group in self.view().sticky.values() if group.group == "big")
        assert len(big.members) == self.members
        assert len(big.owners) == self.partitions


def joined(member: int) -> StickyChanges:
    changes = StickyChanges()
    changes.join(member, Enrolled(f"member-{member}", 10_000))
    return changes
