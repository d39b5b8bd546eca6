"""The command line."""


def main() -> None:
    """The `quiver` command."""
