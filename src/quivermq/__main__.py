"""`python -m quivermq`: the same as the command `quiver`."""

from quivermq.cli import main

main()
