"""Checks the identity of a broker that registers, by its data directory.

A directory that was emptied, swapped or restored from a copy has forgotten what it promised to
others: its vote, the entries that it acknowledged. Such a broker must not count (decision 0013).
"""

from collections.abc import Collection

from quivermq.cluster.catalog_view import View
from quivermq.cluster.features import Levels, why_unfit
from quivermq.errors import Forbidden, UnsupportedFormat


def judge(
    view: View,
    id: int,  # noqa: A002 - named as in the record and on the wire
    directory_id: str,
    lives: Collection[str],
    cluster_id: str,
    *,
    joining: bool = False,
) -> None:
    """Raise `Forbidden`, saying what to do, unless the broker may take part. `cluster_id` is that
    stored in its directory, "" if none is; `lives` are the words of its last starts; `joining` says
    that the directory holds nothing yet."""
    if cluster_id and view.cluster is not None and cluster_id != view.cluster.id:
        raise Forbidden(
            f"the data directory of broker {id} belongs to cluster {cluster_id}, this is cluster "
            f"{view.cluster.id}: start the broker with its own directory, or with an empty one"
        )
    for other in view.brokers.values():
        if other.id != id and other.directory_id == directory_id:
            raise Forbidden(
                f"the data directory of broker {id} is that of broker {other.id}: start it with "
                f"its own directory, or as broker {other.id}"
            )
    broker = view.brokers.get(id)
    if broker is None:
        if not joining:
            raise Forbidden(
                f"broker {id} is not a member of this cluster: start it with an empty data "
                "directory and --join"
            )
    elif not broker.directory_id:
        if not joining:
            raise Forbidden(
                f"broker {id} is being replaced: it is let in as soon as it registers with an "
                "empty data directory"
            )
    elif directory_id != broker.directory_id:
        raise Forbidden(_of_another(view, id, joining=joining))
    elif broker.life and broker.life not in lives:
        raise Forbidden(
            f"the data directory of broker {id} is an old copy: it knows nothing of the start that "
            "was registered last. Start the broker with the original, or, if that is lost, with an "
            f"empty one, and run `quiver cluster replace {id}`"
        )


def _of_another(view: View, node: int, *, joining: bool) -> str:
    if not joining:
        return (
            f"broker {node} came back with another data directory: start it with its own, or, if "
            f"that is lost, run `quiver cluster replace {node}`"
        )
    return (
        f"there is a broker {node} in this cluster, with another data directory: start this one "
        f"with another --node-id, like {max(view.brokers) + 1}; or, if it is broker {node} and its "
        f"directory is lost, run `quiver cluster replace {node}`"
    )


def may_be_news(
    view: View,
    id: int,  # noqa: A002 - as above
    directory_id: str,
    cluster_id: str,
) -> bool:
    """Whether a broker may have joined, or been replaced, since the catalog was as in this view.

    Only a leader tells a broker the id of the cluster, and gives it a member number of its own. So
    one that knows the id, with a directory that this view does not give it, cannot pass for a
    member that has forgotten its promises.
    """
    broker = view.brokers.get(id)
    is_ours = view.cluster is not None and cluster_id == view.cluster.id
    return is_ours and (broker is None or broker.directory_id != directory_id)


def judge_levels(view: View, node: int, levels: Levels, version: str) -> None:
    """Raise `UnsupportedFormat`, saying which release is needed, unless a build that knows these
    feature levels may take part."""
    cluster = view.cluster
    if cluster and (why := why_unfit(cluster.level, cluster.release, levels, version)):
        raise UnsupportedFormat(f"broker {node} cannot take part: {why}")
