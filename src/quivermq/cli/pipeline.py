"""`quiver pipeline`: topics, tables and the SQL between them, on Spark.

The commands live in modules of their own: those for archives, and those for pipelines from a file.
"""

import typer

from quivermq.cli import archive_commands, pipeline_commands

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Run pipelines on Spark; archive topics, and put them back.",
)
pipeline_commands.add_to(app)
archive_commands.add_to(app)
