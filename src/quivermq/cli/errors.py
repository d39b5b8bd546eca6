"""Errors of the command line: wrong usage, and how any error becomes one line and an exit code."""

from typing import Any, Final

import typer

from quivermq.cli.output import print_error
from quivermq.errors import QuiverError
from quivermq.validation import explain

INTERRUPTED: Final = 130
# Wrong usage, as typer raises it; which library defines it differs between its versions.
_TyperUsageError: Final[Any] = typer.BadParameter.__mro__[2]


class UsageError(Exception):
    """Wrong usage. The message is one line that says what to write instead; exit code 2."""


def report_error(error: Exception) -> int:
    """Print one line for `error`, and return the exit code."""
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, UsageError):
        print_error(str(error))
        return 2
    if isinstance(error, _TyperUsageError):
        context = getattr(error, "ctx", None)
        found = getattr(error.__cause__, "errors", None)
        if found:  # of pydantic, by which some versions of typer convert values
            error.message = explain(found()[0])
        hint = f" (try: {context.command_path} --help)" if context else ""
        message = error.format_message().strip()
        if message:  # else typer has printed the help instead
            print_error(message.rstrip(".") + hint)
        return int(error.exit_code)
    if isinstance(error, QuiverError):
        print_error(str(error) or error.code)
    elif isinstance(error, OSError):
        print_error(str(error))
    else:
        print_error(f"unexpected {type(error).__name__}: {error} (QUIVER_DEBUG=1 shows where)")
    return 1
