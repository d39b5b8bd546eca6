"""The prompt of `quiver shell` on a terminal: line editing, completion and history.

Imports prompt_toolkit, so that only a shell on a terminal loads it.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from quivermq.cli.shell_commands import ShellCommands
from quivermq.errors import QuiverError


def read_lines(commands: ShellCommands) -> Iterator[str]:
    """Yield the lines typed at the prompt, until Ctrl-D. Ctrl-C drops the line."""
    # Completion asks brokers: in a thread, one that does not answer cannot block the keyboard.
    session: PromptSession[str] = PromptSession(
        completer=_ShellCompleter(commands),
        complete_in_thread=True,
        complete_while_typing=False,
        history=_open_history(),
        auto_suggest=AutoSuggestFromHistory(),
    )
    while True:
        try:
            line = session.prompt(commands.prompt)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        yield line


class _ShellCompleter(Completer):
    """Completes the word before the cursor: commands, topics, groups, modes, options, and the
    numbers of messages that are held."""

    def __init__(self, commands: ShellCommands) -> None:
        self._commands = commands

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002
    ) -> Iterable[Completion]:
        *before, word = document.text_before_cursor.split(" ")
        try:
            choices = self._commands.words_after([each for each in before if each])
        except QuiverError:
            return  # the next command says that no broker answers
        for choice in choices:
            # Topics of the system are offered once they are begun.
            if choice.startswith(word) and (word or not choice.startswith("_")):
                yield Completion(f"{choice} ", start_position=-len(word), display=choice)


def _open_history() -> History:
    """The history in the user's state directory; in memory if that cannot be written."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(state) / "quivermq" / "shell_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)  # it holds messages that were typed
        file.open("ab").close()
    except OSError:
        return InMemoryHistory()
    return FileHistory(file)
