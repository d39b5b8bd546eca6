"""Whole clusters from seeds; `python -m tests.raft.cluster` runs more of them."""

import pytest

from tests.raft.cluster import World, main, story_of

SEEDS = 400
GROUPS = 8


@pytest.mark.parametrize("group", range(GROUPS))
def test_seeded_clusters_stay_safe_and_recover(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            World(seed).run()
        except Exception as error:
            pytest.fail(f"{story_of(seed)}\n{type(error).__name__}")


def test_a_seed_replays_exactly() -> None:
    first, second = (World(11, story=True) for _ in range(2))
    first.run()
    second.run()
    assert first.story == second.story


def test_the_worlds_are_not_idle() -> None:
    worlds = [World(seed) for seed in range(40)]
    for world in worlds:
        world.run()
    assert sum(world.checker.commit_seen for world in worlds) > 500
    assert sum(world.checker.reads_answered for world in worlds) > 50
    assert max(len(world.checker.leaders) for world in worlds) >= 4


def test_the_command_line_runs_seeds_and_tells_stories(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "2"]) == 0
    assert "2 seeds clean" in capsys.readouterr().out
    assert main(["--seed", "3"]) == 0
    assert "seed 3" in capsys.readouterr().out
