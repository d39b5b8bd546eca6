"""The command line `quiver`: each command is the module of its name."""

from quivermq.cli.app import main

__all__ = ["main"]
