"""A member of a sticky group in a process of its own, that can be paused and killed.

    python -m tests.cluster.sticky_process SERVERS TOPIC GROUP SESSION

Does what the lines on its standard input say, and answers each with a line of JSON: `poll N`,
`commit`, `assignment`. Ends when its standard input does.
"""

import json
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

import quivermq


class MemberProcess:
    """Holds such a process."""

    def __init__(self, servers: str, topic: str, group: str, session: float) -> None:
        command = [sys.executable, "-m", __name__, servers, topic, group, str(session)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line + "\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def answer(consumer: quivermq.Consumer, word: str, *rest: str) -> Any:
    try:
        match word:
            case "poll":
                messages = consumer.poll(int(rest[0]), wait=2.0)
                return [(m.partition, m.offset, m.value.decode()) for m in messages]
            case "commit":
                consumer.commit()
                return "done"
            case "assignment":
                return consumer.assignment
    except quivermq.QuiverError as error:
        return error.code
    return "what?"


def main(servers: str, topic: str, group: str, session: str) -> None:
    with (
        quivermq.connect(servers) as client,
        client.consumer(topic, group, session=float(session), auto_commit=False) as consumer,
    ):
        for line in sys.stdin:
            sys.stdout.write(json.dumps(answer(consumer, *line.split())) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
