"""What is wrong with a pipeline's file: each problem with its line."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from quivermq.errors import InvalidRequest


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing to change, and where."""

    line: int
    message: str


class InvalidPipeline(InvalidRequest):
    """The file cannot be run as it stands; `problems` are in the order of its lines."""

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        self.lines = tuple(f"{name}:{each.line}: {each.message}" for each in self.problems)
        super().__init__("\n".join(self.lines))


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean orders?` if something is close, else what there is."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are: {', '.join(names)}" if names else "there are none"
