"""Forked processes: a child must never use its parent's sockets, threads or producer ids.

An object that holds such things registers here, and lets go of them in the child before any code
of the child runs. Nothing has to be checked on every call.
"""

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Holds what a child must not use."""

    def after_fork(self) -> None:
        """This is the child: let go, without sending anything."""


_held: WeakSet[Forkable] = WeakSet()


def watch(holder: Forkable) -> None:
    """Call `holder.after_fork()` in every child for as long as `holder` lives."""
    _held.add(holder)


def _after_fork() -> None:
    for holder in list(_held):
        holder.after_fork()


# Not everywhere can processes fork; where they cannot, there is nothing to do.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
