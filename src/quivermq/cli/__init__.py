"""The command line: `quiver`, one module a command, errors as one clear line."""

from quivermq.cli.app import main

__all__ = ["main"]
