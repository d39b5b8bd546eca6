"""Which scenario fills which limit."""

from typing import Final

from tests.limits.delays import Cancelled, Delayed, Due, Stretches
from tests.limits.leasing import Groups, Holders, Leases, Pieces, Spent, State
from tests.limits.stage import Scenario
from tests.limits.writing import Catalog, Producers, Uncommitted

SCENARIOS: Final[dict[str, type[Scenario]]] = {
    one.name: one
    for one in (
        Leases, Pieces, Spent, Holders, Groups, State, Delayed, Due, Cancelled, Stretches,
        Producers, Uncommitted, Catalog,
    )
}  # fmt: skip
