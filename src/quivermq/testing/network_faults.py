"""Faults between machines: partitions of every shape, clogged links, bad weather."""

from functools import partial

from quivermq.testing.network import Weather, bridge, deaf, mute, ring, split
from quivermq.testing.stage import Stage


def partition(stage: Stage) -> None:
    """F6: a minority is cut off, or the cluster falls into a bridge or a ring."""
    nodes = stage.world.nodes
    if len(nodes) == 1:
        return
    stage.dice.shuffle(nodes)
    shape = stage.dice.choice(("minority", "leader", "bridge", "ring"))
    leader = stage.world.leader
    if shape == "bridge":
        links = bridge(nodes)
    elif shape == "ring":
        links = ring(nodes)
    elif shape == "leader" and leader is not None:
        links = split([leader.member], [node for node in nodes if node != leader.member])
    else:
        size = stage.dice.randint(1, len(nodes) // 2)
        links = split(nodes[:size], nodes[size:])
    _cut_for_a_while(stage, links, "partition", f"{shape} {nodes}")


def one_way_partition(stage: Stage) -> None:
    """F7: some nodes are heard and do not hear, or hear and are not heard."""
    nodes = stage.world.nodes
    stage.dice.shuffle(nodes)
    some = nodes[: stage.dice.randint(1, max(1, len(nodes) // 2))]
    leader = stage.world.leader
    if leader is not None and stage.dice.random() < 0.5:
        some = [leader.member]
    shape = stage.dice.choice((mute, deaf))
    links = shape(nodes, some)
    _cut_for_a_while(stage, links, "one-way partition", f"{shape.__name__} {some}")


def _cut_for_a_while(stage: Stage, links: set[tuple[int, int]], name: str, text: str) -> None:
    network = stage.world.network
    network.cut(links)
    stage.world.story.strike(name, text)

    def join() -> None:
        network.cut(())
        stage.world.story.tell(f"{name} ends")

    stage.after(stage.between(500, 8_000), join)


def clog(stage: Stage) -> None:
    """F8: links clog one by one, and are restored in any order."""
    network, nodes = stage.world.network, stage.world.nodes
    links = [(a, b) for a in nodes for b in nodes if a != b]
    stage.dice.shuffle(links)
    chosen = links[: stage.dice.randint(0, len(links))]
    for link in chosen:
        stage.after(stage.between(0, 1_500), partial(network.clog, link))
        stage.after(stage.between(2_000, 7_000), partial(network.restore, link))
    stage.world.story.strike("clog", f"{len(chosen)} links")


def bad_weather(stage: Stage) -> None:
    """F9: loss, jitter, repetition and reordering, for a while."""
    dice = stage.dice
    weather = Weather(
        delay_ms_max=dice.choice((5.0, 50.0, 400.0)),
        loss=dice.choice((0.0, 0.02, 0.1, 0.3)),
        repetition=dice.choice((0.0, 0.05, 0.3)),
        is_ordered=dice.random() < 0.3,
    )
    stage.world.network.weather = weather
    stage.world.story.strike("bad weather", str(weather))

    def clear() -> None:
        stage.world.network.weather = Weather()

    stage.after(stage.between(2_000, 10_000), clear)
