"""`quiver pipeline run` and `status`: pipelines from a TOML file."""

import typer


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
