"""Faults of what is stored: flipped bits, cut and missing files, an empty disk.

Only in members that are fragile, always a minority: what a majority forgot, nobody can bring back.
"""

from collections.abc import Callable

from quivermq.batches.header import MARK_PREFIX
from quivermq.testing.host import FOLDER, Host
from quivermq.testing.stage import Stage

DOWN_MS_MAX = 2_000


def damage(stage: Stage) -> None:
    """F10, F11, F12: something on the disk of a fragile member is not what was written."""
    host = _fragile_host(stage)
    if host is None:
        return
    paths = host.disk.paths()
    path = stage.dice.choice(paths)
    act = stage.dice.choice((flip_bit, flip_bit, flip_bit, cut_short, lose_file))
    if act(stage, host, path):
        name = path.rpartition("/")[2]
        stage.world.story.strike("damage", f"{act.__name__} {name} of node {host.member}")
        # An active segment that is cut under a process which goes on writing gets its length back,
        # and looks torn after a power loss: the log promises nothing there.
        is_cut = act is cut_short and _is_last_segment(path, paths)
        if is_cut or stage.dice.random() < 0.5:
            host.crash("killed", power=False, down_ms=stage.between(50, DOWN_MS_MAX))


def empty_disk(stage: Stage) -> None:
    """F22: a node comes back with its old id and nothing else."""
    host = _fragile_host(stage)
    if host is None or stage.dice.random() < 0.5:
        return
    for path in host.disk.paths():
        host.disk.lose_file(path)
    host.crash("killed", power=False, down_ms=stage.between(50, DOWN_MS_MAX))
    stage.world.story.strike("empty disk", f"node {host.member}")


def _fragile_host(stage: Stage) -> Host | None:
    hosts = [stage.world.hosts[member] for member in stage.fragile]
    sound = [host for host in hosts if host.disk.paths() and not host.is_retired]
    return stage.dice.choice(sound) if sound else None


def _is_last_segment(path: str, paths: list[str]) -> bool:
    return path == max((path for path in paths if path.endswith(".seg")), default="")


Damage = Callable[[Stage, Host, str], bool]


def flip_bit(stage: Stage, host: Host, path: str) -> bool:
    """One bit is wrong; False if there was none to flip."""
    content = host.disk.content(path)
    size = len(content)
    # Behind the last mark nothing tells damage from a torn write, nor could anything.
    if path.startswith(FOLDER) and _is_last_segment(path, host.disk.paths()):
        size = max(0, content.rfind(MARK_PREFIX))
    if not size:
        return False
    host.disk.flip_bit(path, stage.dice.randrange(size * 8))
    return True


def cut_short(stage: Stage, host: Host, path: str) -> bool:
    """The end of a file is gone."""
    content = host.disk.content(path)
    host.disk.replace_content(path, content[: stage.dice.randint(0, len(content))])
    return True


def lose_file(_: Stage, host: Host, path: str) -> bool:
    """A file is gone."""
    host.disk.lose_file(path)
    return True
