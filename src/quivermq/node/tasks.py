"""Ends background tasks; a module of its own, because parts that know nothing of each other do."""

import asyncio
import logging
from typing import Any, Final

logger = logging.getLogger("quivermq.tasks")

_AGAIN_S: Final = 1.0


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks in this order, and return when they have ended.

    Awaiting a cancelled task and suppressing its `CancelledError` also suppresses the cancellation
    of the task that waits, which then goes on for ever. `asyncio.wait` does not have that fault. A
    task that loses a cancellation all the same is cancelled again.
    """
    # No set: its order is that of addresses in memory, and a simulated run could not be repeated.
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_AGAIN_S)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s had failed", task.get_name(), exc_info=error)
