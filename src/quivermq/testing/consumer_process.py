"""Runs a consumer of a trial as a process, so that it can be killed and paused.

    python -m quivermq.testing.consumer_process '{"servers": ..., "journal": ..., "plan": {...}}'

It writes every event to its journal, stops at SIGTERM, and ends when its standard input does. With
a plan that `waits_for_word`, each line of the input lets it settle the messages of one poll.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import quivermq
from quivermq.testing.trials.consumer import ConsumerPlan, TrialConsumer
from quivermq.testing.trials.journal import Journal, JournaledCalls

_LOOK_AGAIN_S = 0.05


def main() -> None:
    what = json.loads(sys.argv[1])
    words = threading.Semaphore(0)

    def listen() -> None:
        for _ in sys.stdin:
            words.release()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())

    def wait_for_word() -> bool:
        while not words.acquire(timeout=_LOOK_AGAIN_S):
            if over.is_set():
                return False
        return True

    journal = JournaledCalls(Journal(Path(what["journal"])), "group")
    with quivermq.connect(what["servers"], timeout=what["timeout"]) as client:
        TrialConsumer(client, journal, ConsumerPlan(**what["plan"]), wait_for_word).run(over.is_set)


if __name__ == "__main__":
    main()
