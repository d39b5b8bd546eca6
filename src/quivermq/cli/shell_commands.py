"""The commands of `quiver shell`.

A method whose name begins with `do_` is a command, and its docstring is its line of help: how to
write it, a colon, what it does.
"""

import shlex
import time
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from quivermq.cli.errors import UsageError
from quivermq.cli.group import print_groups
from quivermq.cli.message_lines import MessageLines
from quivermq.cli.options import parse_position
from quivermq.cli.output import (
    count,
    format_number,
    print_line,
    print_table,
    remark,
    table,
)
from quivermq.cli.produce import parse_headers
from quivermq.cli.shell_modes import (
    MODES,
    SharedMode,
    ShellMode,
    SingleMode,
    open_mode,
)
from quivermq.cli.shell_status import ShellStatus, show_live
from quivermq.quantities import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from quivermq.client import Client

_POLL: Final = 10
_POLL_SECONDS: Final = 1.0
_STREAM_MESSAGES: Final = 100
_STREAM_SECONDS: Final = 0.2
DEFAULT_GROUP: Final = "shell"
_OPTIONS: Final = {
    "send": ("key", "priority", "delay", "topic", "header"),
    "nack": ("delay", "reason"),
    "reject": ("reason",),
}


class ShellCommands:
    """Runs command lines. Keeps the topic, group and mode in use, and the messages held."""

    def __init__(self, client: "Client", *, as_json: bool, is_interactive: bool) -> None:
        self._client = client
        self._lines = MessageLines(as_json=as_json, details=True)
        self._as_json = as_json
        self.is_interactive = is_interactive
        self._mode = "shared"
        self._topic: str | None = None
        self._group = DEFAULT_GROUP
        self._opened: ShellMode | None = None
        self.is_over = False

    @property
    def prompt(self) -> str:
        """The topic, group and mode in use."""
        if self._topic is None:
            return "quiver> "
        return f"{self._topic}/{self._group} {self._mode}> "

    def run(self, line: str) -> None:
        """Run one line; raises `UsageError` or `QuiverError` if it fails."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"{error}: close the quotes") from None
        if not words or words[0].startswith("#"):
            return
        command = commands().get(words[0])
        if command is None:
            near = get_close_matches(words[0], commands(), n=1)
            hint = f"did you mean {near[0]}?" if near else "help lists them"
            raise UsageError(f"{words[0]!r} is not a command; {hint}")
        command(self, words[1:])

    def close(self) -> None:
        """Release the messages held, and leave the group."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def words_after(self, before: list[str]) -> list[str]:
        """The words that can follow these on a line, for completion."""
        if not before or before == ["help"]:
            return sorted(commands())
        command, *given = before
        if given and given[-1] == "--topic":
            return self._client.topic_names()
        options = [f"--{each}" for each in _OPTIONS.get(command, ())]
        left = [each for each in options if each not in given or each == "--header"]
        if given and given[-1] in options:
            return []  # its value
        if command in {"ack", "nack", "reject"} and isinstance(self._opened, SharedMode):
            return [*(str(each) for each in self._opened.held if str(each) not in given), *left]
        if command == "subscribe" and len(given) == 1:
            return [group.name for group in self._client.groups(given[0])]
        if given:
            return left
        return {
            "mode": lambda: list(MODES),
            "status": lambda: ["live"],
            "seek": lambda: ["earliest", "latest"],
            "subscribe": self._client.topic_names,
        }.get(command, lambda: left)()

    def do_send(self, words: list[str]) -> None:
        """send VALUE: send a message to the topic in use, or to --topic T; --key K, --priority N,
        --delay 5s, --header NAME=VALUE"""
        headers: list[str] = []
        options, rest = _options(words, *_OPTIONS["send"], headers=headers)
        if not rest:
            raise UsageError("send needs a value: send hello")
        priority = _number(options.get("priority", "0"), "--priority", least=0)
        receipt = self._client.produce(
            options.get("topic") or self._used_topic(),
            " ".join(rest).encode("utf-8", "surrogateescape"),
            key=options["key"].encode() if "key" in options else None,
            headers=parse_headers(headers) or None,
            priority=priority,
            delay=_duration(options["delay"], "--delay") if "delay" in options else 0.0,
        )
        print_line(f"stored at {receipt.partition}/{receipt.offset}")

    def do_subscribe(self, words: list[str]) -> None:
        """subscribe TOPIC [GROUP]: use this topic and consume it for this group"""
        if not 1 <= len(words) <= 2:
            raise UsageError("subscribe needs a topic: subscribe TOPIC [GROUP]")
        topic = self._client.topic(words[0])
        self.close()
        self._topic, self._group = topic.name, words[1] if len(words) > 1 else DEFAULT_GROUP
        print_line(
            f"{topic.name}: {count(len(topic.partitions), 'partition')}, "
            f"{count(topic.message_count, 'message')}; group {self._group}, {self._mode}"
        )

    def do_mode(self, words: list[str]) -> None:
        """mode shared|sticky|single: choose how to consume; releases the messages held"""
        if len(words) != 1 or words[0] not in MODES:
            raise UsageError(f"mode needs one of {', '.join(MODES)}")
        self.close()
        self._mode = words[0]
        print_line(f"mode {self._mode}")

    def do_poll(self, words: list[str]) -> None:
        """poll [N]: take up to N messages (10); waits a second for the first"""
        found = self._open().take(_one_number(words, _POLL), _POLL_SECONDS)
        self._show(found)
        if not found:
            remark("nothing is waiting")

    def do_stream(self, words: list[str]) -> None:
        """stream [N]: show and settle messages as they come, until N or Ctrl-C"""
        most = _one_number(words, 0)
        opened, seen, quiet_since = self._open(), 0, time.monotonic()
        if self.is_interactive and not most:
            remark("Ctrl-C ends")
        try:
            while not most or seen < most:
                wanted = min(most - seen, _STREAM_MESSAGES) if most else _STREAM_MESSAGES
                found = opened.take(wanted, _STREAM_SECONDS)
                self._show(found)
                seen += len(found)
                if found:
                    opened.settle(len(found))
                    quiet_since = time.monotonic()
                elif not self.is_interactive and time.monotonic() - quiet_since > _POLL_SECONDS:
                    break
                elif isinstance(opened, SingleMode):
                    time.sleep(_STREAM_SECONDS)
        except KeyboardInterrupt:
            if not self.is_interactive:
                raise
        remark(f"{count(seen, 'message')}")

    def do_ack(self, words: list[str]) -> None:
        """ack [NUMBER...]: acknowledge these messages, or all held"""
        done = self._shared("ack").ack(_numbers(words))
        print_line(f"{count(done, 'message')} acknowledged")

    def do_nack(self, words: list[str]) -> None:
        """nack [NUMBER...]: return these, or all, as failed; --delay 5s, --reason TEXT"""
        options, rest = _options(words, *_OPTIONS["nack"])
        delay = _duration(options["delay"], "--delay") if "delay" in options else None
        done = self._shared("nack").nack(_numbers(rest), delay, options.get("reason"))
        print_line(f"{count(done, 'message')} returned as failed")

    def do_reject(self, words: list[str]) -> None:
        """reject [NUMBER...]: make these, or all, dead letters; --reason TEXT"""
        options, rest = _options(words, *_OPTIONS["reject"])
        reason = options.get("reason", "rejected by hand")
        done = self._shared("reject").reject(_numbers(rest), reason)
        print_line(f"{count(done, 'message')} rejected")

    def do_commit(self, words: list[str]) -> None:
        """commit: commit the offsets of all messages shown (sticky, single)"""
        if words:
            raise UsageError("commit takes no arguments: it commits all that was shown")
        opened = self._open()
        if isinstance(opened, SharedMode):
            raise UsageError("a shared group has no offset to commit: ack messages instead")
        print_line(f"{count(opened.commit(), 'message')} committed")

    def do_seek(self, words: list[str]) -> None:
        """seek WHERE: move the group to earliest, latest, a time or an age (2h); releases what is
        held"""
        if len(words) != 1:
            raise UsageError("seek needs a place: seek earliest")
        position = parse_position(words[0], "seek")
        topic = self._used_topic()
        if isinstance(position, int) and len(self._client.topic(topic).partitions) > 1:
            raise UsageError("an offset counts within one partition: quiver group seek names one")
        self.close()
        for partition, offset in sorted(self._client.seek(topic, self._group, position).items()):
            print_line(f"{self._group} continues at offset {offset:,} of partition {partition}")

    def do_status(self, words: list[str]) -> None:
        """status [live]: show the cluster, the messages held and the group's counts; live: until
        Ctrl-C"""
        if words not in ([], ["live"]):
            raise UsageError("status stands alone, or with live")
        status = ShellStatus(self._client, self._topic, self._group, self._mode, self._opened)
        if words and self.is_interactive:
            show_live(status)
            return
        for line in status.lines():
            print_line(line)

    def do_groups(self, words: list[str]) -> None:  # noqa: ARG002  (there are none)
        """groups: list the groups of the topic in use"""
        found = self._client.groups(self._used_topic())
        if found:
            print_groups(found)
        else:
            remark("no groups; poll makes one")

    def do_topics(self, words: list[str]) -> None:  # noqa: ARG002  (there are none)
        """topics: list the topics"""
        found = [topic for topic in self._client.topics() if not topic.name.startswith("_")]
        if not found:
            remark("no topics; quiver topic create TOPIC creates one")
            return
        made = table("topic", "partitions>", "messages>")
        for topic in found:
            made.add_row(topic.name, str(len(topic.partitions)), format_number(topic.message_count))
        print_table(made)

    def do_help(self, words: list[str]) -> None:
        """help [COMMAND]: show this list, or one command"""
        known = commands()
        for word in words:
            if word not in known:
                raise UsageError(f"{word!r} is not a command; help lists them")
        made = table("command", "what it does")
        made.columns[0].no_wrap = True
        for command in (known[name] for name in words or known):
            written, _, meaning = (command.__doc__ or "").partition(": ")
            made.add_row(written.replace("[", "\\["), " ".join(meaning.split()))
        print_table(made)

    def do_exit(self, words: list[str]) -> None:  # noqa: ARG002  (there are none)
        """exit: leave, and release the messages held; Ctrl-D does the same"""
        self.is_over = True

    def _show(self, found: list[Any]) -> None:
        opened = self._opened
        first = len(found)
        for place, message in enumerate(found):
            if isinstance(opened, SharedMode) and not self._as_json:
                number = list(opened.held)[place - first]
                self._lines.write(message, f"[{number}] ")
            else:
                self._lines.write(message)
        self._lines.flush()

    def _used_topic(self) -> str:
        if self._topic is None:
            raise UsageError("no topic in use: subscribe TOPIC [GROUP] first")
        return self._topic

    def _open(self) -> ShellMode:
        if self._opened is None:
            self._opened = open_mode(self._mode, self._client, self._used_topic(), self._group)
        return self._opened

    def _shared(self, command: str) -> SharedMode:
        opened = self._open() if self._mode == "shared" else None
        if not isinstance(opened, SharedMode):
            raise UsageError(f"{command} is for mode shared; in mode {self._mode}, use commit")
        return opened


def commands() -> "dict[str, Callable[[ShellCommands, list[str]], None]]":
    """The commands by name, in the order of help."""
    return {
        name.removeprefix("do_"): method
        for name, method in vars(ShellCommands).items()
        if name.startswith("do_")
    }


def _options(
    words: list[str], *names: str, headers: list[str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Split the words into `--name value` options, wherever they stand, and the rest; each
    `--header` goes to `headers`."""
    found, rest, left = {}, [], list(words)
    while left:
        word = left.pop(0)
        name = word.removeprefix("--")
        if word == "--":
            rest += left
            break
        if word.startswith("--") and name in names:
            if not left:
                raise UsageError(f"{word} needs a value")
            value = left.pop(0)
            if name == "header" and headers is not None:
                headers.append(value)
            else:
                found[name] = value
        elif word.startswith("--"):
            raise UsageError(
                f"{word} is not an option here; to send it as text, write -- before it"
            )
        else:
            rest.append(word)
    return found, rest


def _number(text: str, what: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"{what}: {text!r} is not a number from {least} up")
    return int(text)


def _one_number(words: list[str], default: int) -> int:
    if len(words) > 1:
        raise UsageError("give one number only")
    return _number(words[0], "number of messages") if words else default


def _numbers(words: list[str]) -> list[int]:
    return list(dict.fromkeys(_number(word.strip("[]"), "message number") for word in words))


def _duration(text: str, what: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None
