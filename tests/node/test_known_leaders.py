"""Who leads what, by hearsay: the later term is believed, and nothing is kept for ever."""

from quivermq.node.known_leaders import KnownLeaders, Leadership

GROUP, OTHER = b"a" * 16, b"b" * 16


def test_the_later_term_is_believed_in_any_order() -> None:
    leaders = KnownLeaders()
    for leadership in (Leadership(3, 1), Leadership(5, 2), Leadership(4, 3), Leadership(5, 3)):
        leaders.learn(GROUP, leadership)
    assert leaders.node(GROUP) == 2
    assert leaders.node(GROUP, later_than=4) == 2
    assert leaders.node(GROUP, later_than=5) == 0


def test_an_ended_leadership_is_forgotten_and_old_news_does_not_restore_it() -> None:
    leaders = KnownLeaders()
    leaders.learn(GROUP, Leadership(5, 2))
    leaders.end(GROUP, 1)
    assert leaders.node(GROUP) == 2
    leaders.end(GROUP, 2)
    leaders.learn(GROUP, Leadership(5, 2))
    leaders.learn(GROUP, Leadership(4, 1))
    assert leaders.node(GROUP) == 0
    leaders.learn(GROUP, Leadership(6, 2))
    assert leaders.node(GROUP) == 2


def test_a_broker_that_was_started_leads_nothing() -> None:
    leaders = KnownLeaders()
    leaders.learn(GROUP, Leadership(5, 2))
    leaders.learn(OTHER, Leadership(5, 3))
    leaders.end_all_of(2)
    assert (leaders.node(GROUP), leaders.node(OTHER)) == (0, 3)


def test_groups_that_are_gone_are_forgotten_and_those_to_come_are_not() -> None:
    leaders = KnownLeaders()
    leaders.keep_only([GROUP])
    leaders.learn(GROUP, Leadership(1, 1))
    leaders.learn(OTHER, Leadership(1, 2))
    leaders.keep_only([])
    assert (leaders.node(GROUP), leaders.node(OTHER)) == (0, 2)


def test_what_is_heard_of_groups_that_never_come_does_not_pile_up() -> None:
    leaders = KnownLeaders()
    leaders.keep_only([GROUP])
    leaders.learn(GROUP, Leadership(1, 1))
    for number in range(50_000):
        leaders.learn(number.to_bytes(16, "big"), Leadership(1, 2))
    assert len(leaders) < 20_000
    assert leaders.node(GROUP) == 1
