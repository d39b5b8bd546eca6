"""What a run and whoever watches it have to say to each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Report = Mapping[str, Any]
"""As `Progress.report` makes it."""


@dataclass(slots=True)
class StopRequest:
    """How often somebody asked to stop: once ends after the batch that is under way, twice at
    once. Both lose and double nothing."""

    count: int = 0

    def ask(self) -> None:
        self.count += 1


@dataclass(slots=True)
class Watching:
    """Who wants to hear: `stage` of what takes a while before it runs, `report` while it runs."""

    stage: Callable[[str], None] = lambda _: None
    report: Callable[[Report], None] = lambda _: None
    ready: Callable[[], None] = lambda: None
    """Called when Spark is there: it puts signal handlers of its own in place."""
    interval: float = 0.5
    stop: StopRequest = field(default_factory=StopRequest)
    deaf: OSError | None = None
    """Why reports cannot be shown any more."""

    def tell(self, report: Report) -> None:
        """Show a report. If that cannot be done, as into a pipe that was closed, ask to stop: who
        looked at it is gone."""
        if self.deaf is not None:
            return
        try:
            self.report(report)
        except OSError as error:
            self.deaf = error
            self.stop.ask()

    @property
    def missed(self) -> str:
        """Why somebody misses reports; whoever closes a pipe has seen enough."""
        if self.deaf is None or isinstance(self.deaf, BrokenPipeError):
            return ""
        return f"reports cannot be written: {self.deaf.strerror or self.deaf}"
