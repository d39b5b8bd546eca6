"""The network's faults, one by one."""

from random import Random

import pytest

from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import VirtualTime
from tests.replica.simulation.network import (
    CLOGGED_MAX,
    Network,
    Weather,
    bridge,
    deaf,
    mute,
    ring,
    split,
)


class Post:
    """A network and everything that arrived."""

    def __init__(self, seed: int = 1, weather: Weather | None = None) -> None:
        self.time = VirtualTime()
        self.network = Network(self.time, Random(seed), Story(self.time))
        self.network.weather = weather or Weather()
        self.arrived: list[tuple[int, int, object]] = []
        self.network.deliver = lambda sender, to, mail: self.arrived.append((sender, to, mail))

    def send_many(self, count: int, link: tuple[int, int] = (1, 2)) -> None:
        for number in range(count):
            self.network.send(*link, number)

    def numbers(self) -> list[object]:
        self.time.run_for_ms(10_000)
        return [mail for _, _, mail in self.arrived]


def test_good_weather_carries_everything_once_and_in_order() -> None:
    post = Post()
    post.send_many(100)
    assert post.numbers() == list(range(100))


def test_loss_and_repetition_come_in_their_share() -> None:
    post = Post(weather=Weather(loss=0.3))
    post.send_many(1000)
    assert 600 < len(post.numbers()) < 800
    post = Post(weather=Weather(repetition=0.3))
    post.send_many(1000)
    assert 1200 < len(post.numbers()) < 1400


def test_an_unordered_link_reorders() -> None:
    post = Post(weather=Weather(is_ordered=False))
    post.send_many(100)
    numbers = post.numbers()
    assert numbers != list(range(100))
    assert sorted(numbers) == list(range(100))


def test_a_cut_link_loses_what_is_sent_and_what_is_under_way_in_its_direction_only() -> None:
    post = Post()
    post.send_many(3)
    post.network.cut({(1, 2)})
    post.send_many(3)
    post.send_many(1, (2, 1))
    assert post.numbers() == [0]
    post.network.heal()
    post.send_many(2)
    assert post.numbers() == [0, 0, 1]


def test_a_clogged_link_holds_a_bounded_number_and_gives_them_back_in_any_order() -> None:
    post = Post()
    post.network.clog((1, 2))
    post.send_many(CLOGGED_MAX + 10)
    assert post.numbers() == []
    assert post.network.clogged == [(1, 2)]
    post.network.restore((1, 2))
    numbers = post.numbers()
    assert numbers != sorted(numbers)
    assert sorted(numbers) == list(range(10, CLOGGED_MAX + 10))
    assert post.network.clogged == []


def test_shapes_of_partitions() -> None:
    assert split([1], [2, 3]) == {(1, 2), (2, 1), (1, 3), (3, 1)}
    assert mute([1, 2, 3], [1]) == {(1, 2), (1, 3)}
    assert deaf([1, 2, 3], [1]) == {(2, 1), (3, 1)}
    assert bridge([1, 2, 3, 4, 5]) == split([1, 2], [4, 5])
    assert ring([1, 2, 3]) == set()
    assert ring([1, 2, 3, 4]) == split([1], [3]) | split([2], [4])


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_is_the_same_network(seed: int) -> None:
    posts = [Post(seed, Weather(loss=0.2, repetition=0.2, is_ordered=False)) for _ in range(2)]
    for post in posts:
        post.send_many(200)
    assert posts[0].numbers() == posts[1].numbers()
