"""Whom a group works with: the runner of all groups, seen from one of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from quivermq.log import Disk, LogSettings
from quivermq.raft import Dice
from quivermq.replica import Mail, ReplicaSettings

if TYPE_CHECKING:
    from quivermq.node.group import Group


class Crew(Protocol):
    """What a group needs of the broker around it."""

    disk: Disk
    dice: Dice
    replica_settings: ReplicaSettings
    log_settings: LogSettings
    writes_inline: bool

    def now_ms(self) -> int: ...
    def steady_ms(self) -> int: ...
    def lapses(self) -> int: ...
    def stirred(self, group: "Group") -> None: ...
    def stirred_later(self, group: "Group") -> None: ...
    def post(self, group: "Group", to: int, mail: Mail) -> None: ...
    def write(
        self, group: "Group", job: Callable[[], object], done: Callable[[object], None]
    ) -> None: ...
    def later(self, delay_s: float, action: Callable[[], None]) -> None: ...
    def office_changed(self, group: "Group") -> None: ...
    def failed(self, group: "Group") -> None: ...
