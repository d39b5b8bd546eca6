"""Silent and restarted peers are found."""

from tests.replica.simulation.process import FailureDetector

SILENT = 3


def test_only_a_peer_that_was_sent_nothing_is_pinged() -> None:
    detector = FailureDetector(SILENT)
    detector.tell(2)
    assert detector.tick([2, 3])[0] == [3]
    assert detector.tick([2, 3])[0] == [2, 3]


def test_a_peer_is_silent_after_so_many_ticks_without_a_word_and_no_earlier() -> None:
    detector = FailureDetector(SILENT)
    assert [detector.tick([2])[1] for _ in range(SILENT + 1)] == [[]] * SILENT + [[2]]
    detector.hear(2)
    assert [detector.tick([2])[1] for _ in range(SILENT + 1)] == [[]] * SILENT + [[2]]


def test_another_boot_is_noticed_once() -> None:
    detector = FailureDetector(SILENT)
    assert [detector.meet(2, boot) for boot in (1, 1, 2, 2, 1)] == [False, False, True, False, True]
