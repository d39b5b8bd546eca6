"""Retries with backoff: how often, how long, and the error in the end."""

import logging
from random import SystemRandom
from typing import Final

from quivermq.client.transport import Transport
from quivermq.errors import ConnectionFailed, NotEnoughReplicas, NotLeader, QuiverError, Timeout

BACKOFF_FIRST_SECONDS: Final = 0.02
BACKOFF_MAX_SECONDS: Final = 1.0
# One attempt must not use up all the time: a broker that hangs may have a successor by then.
ATTEMPT_SHARE: Final = 0.25
ATTEMPT_SECONDS_MIN: Final = 0.5
# Hints are followed at once, but two brokers that point at each other must not make a hot loop.
HINTS_IN_A_ROW_MAX: Final = 3
# An operation that takes longer says in the log why.
WARNING_SECONDS: Final = 2.0
# An attempt that the end of the time cuts off says less than the refusal before it. So none begins
# in the last tenth of the time, or in its last 100 ms.
LAST_SHARE: Final = 0.1
LAST_SECONDS: Final = 0.1

# Of the system: programs seed the generator of the module, and forked ones share others.
_random = SystemRandom()
logger: Final = logging.getLogger("quivermq.client")


class Attempts:
    """One operation and all attempts at it, up to its deadline."""

    __slots__ = (
        "_hints",
        "_last",
        "_left_min",
        "_pauses",
        "_share",
        "_transport",
        "_tried",
        "_warn_at",
        "deadline",
        "timeout",
        "was_uncertain",
        "what",
    )  # fmt: skip

    def __init__(
        self,
        transport: Transport,
        timeout: float,
        what: str,
        *,
        share: float = ATTEMPT_SHARE,
        deadline: float | None = None,
    ) -> None:
        self.what = what
        self.timeout = timeout
        self.deadline = transport.now() + timeout if deadline is None else deadline
        self._transport = transport
        self.was_uncertain = False
        """Some attempt may have had its effect, though no answer said so."""
        self._share = share
        self._left_min = min(LAST_SHARE * timeout, LAST_SECONDS)
        self._last: QuiverError | None = None
        self._tried: dict[str, QuiverError] = {}
        self._pauses = 0
        self._hints = 0
        self._warn_at = transport.now() + WARNING_SECONDS

    def attempt_deadline(self) -> float:
        """Until when one attempt may take."""
        share = max(ATTEMPT_SECONDS_MIN, self._share * self.timeout)
        return min(self.deadline, self._transport.now() + share)

    def record_failure(self, server: str, error: QuiverError) -> None:
        """An attempt at this server failed in a way that may pass."""
        if server not in self._tried or self._transport.now() < self.deadline:
            # An attempt that the end of the time cut short does not hide why the others failed.
            self._tried[server] = error
        self._last = error
        self.was_uncertain |= isinstance(error, Timeout | ConnectionFailed)

    def may_follow_hint(self) -> bool:
        """True if the next attempt need not wait: a broker said whom to ask instead."""
        self.check_time()
        self._hints += 1
        return self._hints <= HINTS_IN_A_ROW_MAX

    async def pause(self) -> None:
        """Wait before the next attempt, longer each time; raises the final error when time is over.

        Jittered, so that many clients that failed together do not come back together.
        """
        now = self._transport.now()
        left = self.deadline - now
        if left < self._left_min:
            raise self.final_error() from None  # it names all that failed
        if now >= self._warn_at:
            self._warn_at = float("inf")
            logger.warning("%s: still trying, for %.0f s more. %s", self.what, left, self._told())
        longest = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2**self._pauses)
        self._pauses += 1
        self._hints = 0
        await self._transport.sleep(min(_random.uniform(0.5, 1.0) * longest, left / 2))

    def check_time(self) -> None:
        """Raise the final error if the time is over."""
        if self.deadline - self._transport.now() < self._left_min:
            raise self.final_error() from None  # it names all that failed

    def final_error(self) -> QuiverError:
        """The error to raise when the time is over: the last refusal, and the servers asked."""
        tried = self._told()
        story = f"{self.what} did not succeed within {self.timeout:g} s"
        match self._last:
            case None:
                return Timeout(f"{story}: no time was left to ask a server")
            case NotLeader():
                return NotEnoughReplicas(
                    f"{story}: there is no leader. Is a majority of its brokers up? See "
                    f"`quiver cluster status`. Asked: {tried}"
                )
            case ConnectionFailed():
                return ConnectionFailed(
                    f"{story}: no server could be reached. Are the addresses right, and the "
                    f"brokers up? Tried: {tried}"
                )
            case Timeout():
                return Timeout(
                    f"{story}, and its outcome is unknown: it may still take effect. Asked: {tried}"
                )
            case error:
                error.add_note(f"{story}. Asked: {tried}")
                return error

    def _told(self) -> str:
        """The last answer of each server that was asked."""
        texts = ((server, str(error)) for server, error in self._tried.items())
        return "; ".join(
            text if text.startswith(server) else f"{server}: {text}" for server, text in texts
        )


def attempt_seconds(timeout: float) -> float:
    """How long the first attempt at an operation may take."""
    return min(timeout, max(ATTEMPT_SECONDS_MIN, ATTEMPT_SHARE * timeout))
