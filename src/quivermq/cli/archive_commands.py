"""`quiver pipeline archive`, `replay` and `compact`: a topic and its table."""

import typer


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
