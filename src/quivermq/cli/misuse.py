"""The error for what the command line was asked and cannot make sense of."""


class Misuse(Exception):
    """Wrong usage, as one line that says what to write instead: exit code 2."""
