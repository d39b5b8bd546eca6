"""An acknowledgement and the end of its lease in the same millisecond, again and again (F29)."""

from random import Random

from quivermq.queue import TopicSettings
from tests.queue.rig import Rig

ROUNDS = 5_000
SETTINGS = TopicSettings(max_deliveries=1_000_000, retry_base_ms=1, retry_longest_ms=1)
VISIBILITY_MS = 5


def test_an_ack_against_expiry_in_the_same_millisecond_has_one_winner() -> None:
    rig, dice = Rig(SETTINGS), Random(29)
    outcomes = {"acked in time": 0, "acked late": 0, "refused": 0}
    for offset in range(ROUNDS):
        rig.put()
        first = rig.poll(1, visibility_ms=VISIBILITY_MS)
        assert first is not None
        assert rig.offsets(first) == [offset]
        if dice.random() < 0.005:
            rig.commit()
        rig.now_ms += VISIBILITY_MS - dice.choice((0, 0, 0, 1))
        steps = ["expire", "ack", "poll"]
        dice.shuffle(steps)
        second, is_acked, has_expired = None, False, False
        for step in steps:
            if step == "expire":
                has_expired = bool(rig.later(0))
            elif step == "poll":
                second = rig.poll(1, consumer=2, visibility_ms=VISIBILITY_MS)
                # Nobody else gets it before it has expired, or after it is done.
                assert rig.offsets(second) == ([offset] if has_expired and not is_acked else [])
            else:
                lost = rig.leases.acknowledge("g", first.lease, [(offset, offset + 1)])
                is_acked = not lost
                # Refused exactly if somebody else has it.
                assert is_acked == (second is None)
                how = "refused" if lost else "acked late" if has_expired else "acked in time"
                outcomes[how] += 1
        if second is not None:
            assert not is_acked
            assert rig.leases.acknowledge("g", second.lease, [(offset, offset + 1)]) == []
            # Said again, it is known; the loser stays refused.
            assert rig.leases.acknowledge("g", second.lease, [(offset, offset + 1)]) == []
            assert rig.leases.acknowledge("g", first.lease, [(offset, offset + 1)])
    rig.commit()
    stats = rig.stats()
    assert (stats.done, stats.in_flight, stats.waiting) == (ROUNDS, 0, 0)
    assert min(outcomes.values()) > ROUNDS // 20, outcomes
