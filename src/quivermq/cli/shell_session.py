"""What can be said in `quiver shell`, and what is done then.

A method whose name begins with `do_` is a command, and its docstring its line of help: how it is
written, a colon, what it does.
"""

import shlex
import time
from typing import TYPE_CHECKING, Any, Final

from quivermq.cli.message_lines import MessageLines
from quivermq.cli.misuse import Misuse
from quivermq.cli.output import count, known, numbers, print_line, print_table, remark, table
from quivermq.cli.quantities import parse_duration
from quivermq.cli.shell_modes import MODES, SharedWay, SingleWay, StickyWay, Way, open_way

if TYPE_CHECKING:
    from collections.abc import Callable

    from quivermq.client import Client

_POLL: Final = 10
_POLL_SECONDS: Final = 1.0
_STREAM_MESSAGES: Final = 100
_STREAM_SECONDS: Final = 0.2
DEFAULT_GROUP: Final = "shell"


class Session:
    """A client, the topic and group in use, and what is held of them."""

    def __init__(self, client: "Client", *, as_json: bool, is_interactive: bool) -> None:
        self._client = client
        self._lines = MessageLines(as_json=as_json, details=True)
        self._as_json = as_json
        self.is_interactive = is_interactive
        self._mode = "shared"
        self._topic: str | None = None
        self._group = DEFAULT_GROUP
        self._way: Way | None = None
        self.is_over = False

    @property
    def prompt(self) -> str:
        """Where the user is."""
        if self._topic is None:
            return "quiver> "
        return f"{self._topic}/{self._group} {self._mode}> "

    def run(self, line: str) -> None:
        """Do what one line says; raises `Misuse` or `QuiverError` if that cannot be."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise Misuse(f"{error}: quotes come in pairs") from None
        if not words or words[0].startswith("#"):
            return
        command = commands().get(words[0])
        if command is None:
            raise Misuse(f"{words[0]!r} is no command; help lists them")
        command(self, words[1:])

    def close(self) -> None:
        """Give back what is held, leave groups."""
        way, self._way = self._way, None
        if way is not None:
            way.close()

    def words_after(self, before: list[str]) -> list[str]:
        """What may come next on a line, for completion."""
        if not before:
            return sorted(commands())
        if before == ["mode"]:
            return list(MODES)
        if before == ["subscribe"]:
            return [topic.name for topic in self._client.topics()]
        if before[0] == "subscribe" and len(before) == 2:
            return [group.name for group in self._client.groups(before[1])]
        return {"send": ["--key", "--priority", "--delay"], "nack": ["--delay"]}.get(before[0], [])

    def do_send(self, words: list[str]) -> None:
        """send VALUE: one message to the topic in use; with --key K, --priority N, --delay 5s"""
        options, rest = _options(words, "key", "priority", "delay")
        if not rest:
            raise Misuse("send what? send hello")
        priority = _number(options.get("priority", "0"), "--priority", least=0)
        receipt = self._client.produce(
            self._used_topic(),
            " ".join(rest).encode("utf-8", "surrogateescape"),
            key=options["key"].encode() if "key" in options else None,
            priority=priority,
            delay=_duration(options["delay"], "--delay") if "delay" in options else 0.0,
        )
        print_line(f"stored at {receipt.partition}/{receipt.offset}")

    def do_subscribe(self, words: list[str]) -> None:
        """subscribe TOPIC [GROUP]: use this topic, and consume it for this group"""
        if not 1 <= len(words) <= 2:
            raise Misuse("subscribe to what? subscribe TOPIC [GROUP]")
        topic = self._client.topic(words[0])
        self.close()
        self._topic, self._group = topic.name, words[1] if len(words) > 1 else DEFAULT_GROUP
        print_line(
            f"{topic.name}: {count(len(topic.partitions), 'partition')}, "
            f"{count(topic.message_count, 'message')}; group {self._group}, {self._mode}"
        )

    def do_mode(self, words: list[str]) -> None:
        """mode shared|sticky|single: how to consume; what is held goes back"""
        if len(words) != 1 or words[0] not in MODES:
            raise Misuse(f"which mode? {', '.join(MODES)}")
        self.close()
        self._mode = words[0]
        print_line(f"mode {self._mode}")

    def do_poll(self, words: list[str]) -> None:
        """poll [N]: take up to N messages (10), waiting a second for the first"""
        found = self._open_way().take(_one_number(words, _POLL), _POLL_SECONDS)
        self._show(found)
        if not found:
            remark("nothing is waiting")

    def do_stream(self, words: list[str]) -> None:
        """stream [N]: show messages as they come and be done with them, until N or Ctrl-C"""
        most = _one_number(words, 0)
        way, seen, quiet_since = self._open_way(), 0, time.monotonic()
        if self.is_interactive and not most:
            remark("Ctrl-C ends")
        try:
            while not most or seen < most:
                wanted = min(most - seen, _STREAM_MESSAGES) if most else _STREAM_MESSAGES
                found = way.take(wanted, _STREAM_SECONDS)
                self._show(found)
                seen += len(found)
                if found:
                    way.settle(len(found))
                    quiet_since = time.monotonic()
                elif not self.is_interactive and time.monotonic() - quiet_since > _POLL_SECONDS:
                    break
                elif isinstance(way, SingleWay):
                    time.sleep(_STREAM_SECONDS)
        except KeyboardInterrupt:
            if not self.is_interactive:
                raise
        remark(f"{count(seen, 'message')}")

    def do_ack(self, words: list[str]) -> None:
        """ack [NUMBER...]: these are done, or all that are held"""
        done = self._shared("ack").ack(_numbers(words))
        print_line(f"{count(done, 'message')} acknowledged")

    def do_nack(self, words: list[str]) -> None:
        """nack [NUMBER...]: these failed and come again, or all; with --delay 5s"""
        options, rest = _options(words, "delay")
        delay = _duration(options["delay"], "--delay") if "delay" in options else None
        done = self._shared("nack").nack(_numbers(rest), delay)
        print_line(f"{count(done, 'message')} returned as failed")

    def do_reject(self, words: list[str]) -> None:
        """reject [NUMBER...]: these become dead letters, or all; with --reason TEXT"""
        options, rest = _options(words, "reason")
        reason = options.get("reason", "rejected by hand")
        done = self._shared("reject").reject(_numbers(rest), reason)
        print_line(f"{count(done, 'message')} rejected")

    def do_commit(self, words: list[str]) -> None:
        """commit: go on behind what was shown (sticky, single)"""
        if words:
            raise Misuse("commit takes no words: it means all that was shown")
        way = self._open_way()
        if isinstance(way, SharedWay):
            raise Misuse("a shared group has no offset to commit: ack messages instead")
        print_line(f"{count(way.commit(), 'message')} committed")

    def do_status(self, words: list[str]) -> None:  # noqa: ARG002  (there are none)
        """status: where you are, what you hold, what the group is at"""
        cluster = self._client.cluster()
        alive = sum(node.alive for node in cluster.nodes)
        print_line(f"cluster of {count(len(cluster.nodes), 'broker')}, {alive} alive")
        if self._topic is None:
            print_line("no topic in use; subscribe TOPIC [GROUP]")
            return
        print_line(f"topic {self._topic}, group {self._group}, mode {self._mode}")
        way = self._way
        if isinstance(way, SharedWay):
            print_line(f"held: {_ranges(list(way.held))}")
        elif isinstance(way, StickyWay):
            print_line(f"partitions: {numbers(way.consumer.assignment)}")
        for group in self._client.groups(self._topic):
            if group.name == self._group:
                print_line(
                    f"lag {group.lag:,}, in flight {group.in_flight:,}, delayed {group.delayed:,}, "
                    f"done {group.done:,}, dead {group.dead:,}"
                )

    def do_topics(self, words: list[str]) -> None:  # noqa: ARG002  (there are none)
        """topics: what there is"""
        found = self._client.topics()
        if not found:
            remark("no topics; quiver topic create makes one")
            return
        made = table("topic", "partitions>", "messages>")
        for topic in found:
            made.add_row(topic.name, str(len(topic.partitions)), known(topic.message_count))
        print_table(made)

    def do_help(self, words: list[str]) -> None:  # noqa: ARG002  (there are none)
        """help: this list"""
        made = table("command", "what it does")
        made.columns[0].no_wrap = True
        for command in commands().values():
            written, _, meaning = (command.__doc__ or "").partition(": ")
            made.add_row(written.replace("[", "\\["), meaning)
        print_table(made)

    def do_exit(self, words: list[str]) -> None:  # noqa: ARG002  (there are none)
        """exit: leave, and give back what is held; Ctrl-D does too"""
        self.is_over = True

    def _show(self, found: list[Any]) -> None:
        way = self._way
        first = len(found)
        for place, message in enumerate(found):
            if isinstance(way, SharedWay) and not self._as_json:
                number = list(way.held)[place - first]
                self._lines.write(message, f"[{number}] ")
            else:
                self._lines.write(message)
        self._lines.flush()

    def _used_topic(self) -> str:
        if self._topic is None:
            raise Misuse("no topic in use: subscribe TOPIC [GROUP] first")
        return self._topic

    def _open_way(self) -> Way:
        if self._way is None:
            self._way = open_way(self._mode, self._client, self._used_topic(), self._group)
        return self._way

    def _shared(self, command: str) -> SharedWay:
        way = self._open_way() if self._mode == "shared" else None
        if not isinstance(way, SharedWay):
            raise Misuse(f"{command} is for mode shared; in mode {self._mode} commit says how far")
        return way


def commands() -> "dict[str, Callable[[Session, list[str]], None]]":
    """By name, in the order of help."""
    return {
        name.removeprefix("do_"): method
        for name, method in vars(Session).items()
        if name.startswith("do_")
    }


def _options(words: list[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """`--name value` anywhere among the words, and the other words."""
    found, rest, left = {}, [], list(words)
    while left:
        word = left.pop(0)
        name = word.removeprefix("--")
        if word == "--":
            rest += left
            break
        if word.startswith("--") and name in names:
            if not left:
                raise Misuse(f"{word} needs a value")
            found[name] = left.pop(0)
        elif word.startswith("--"):
            raise Misuse(f"{word} is not known here; -- before it sends it as it is")
        else:
            rest.append(word)
    return found, rest


def _number(text: str, what: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise Misuse(f"{what}: {text!r} is no number from {least} up")
    return int(text)


def _one_number(words: list[str], default: int) -> int:
    if len(words) > 1:
        raise Misuse("one number is enough")
    return _number(words[0], "how many") if words else default


def _numbers(words: list[str]) -> list[int]:
    return list(dict.fromkeys(_number(word.strip("[]"), "which") for word in words))


def _duration(text: str, what: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Misuse(f"{what}: {error}") from None


def _ranges(held: list[int]) -> str:
    if not held:
        return "nothing"
    last = f" to [{held[-1]}]" if len(held) > 1 else ""
    return f"{count(len(held), 'message')}, [{held[0]}]{last}"
