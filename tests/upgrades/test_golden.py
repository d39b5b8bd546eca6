"""The data directories that releases left behind, opened by the code of today."""

from pathlib import Path

import pytest

from quivermq.cluster import FEATURE_LEVEL_MAX
from quivermq.testing import Cluster
from tests.upgrades import golden
from tests.upgrades.releases import data_archives, packages, release_of, unpacked_data


@pytest.mark.parametrize("archive", data_archives(), ids=release_of)
def test_everything_that_a_release_stored_is_there_before_and_after_the_level_is_raised(
    archive: Path, tmp_path: Path
) -> None:
    folder = unpacked_data(archive, tmp_path)
    with Cluster(1, data_dir=folder, settings=golden.SETTINGS) as cluster:
        golden.check(cluster, folder)
        with cluster.connect() as client:
            assert client.cluster().level == golden.level_of(folder)
            # The broker may not have told yet, with its registration, which levels it knows.
            cluster.wait_until(
                lambda: client.upgrade_cluster().level == FEATURE_LEVEL_MAX, "it is not raised"
            )
        golden.check(cluster, folder)
        cluster.nodes[1].stop()
        cluster.nodes[1].start()
        cluster.wait_ready()
        golden.check(cluster, folder)
        with cluster.connect() as client:
            assert client.cluster().level == FEATURE_LEVEL_MAX


def test_every_release_has_left_its_package_and_its_data() -> None:
    assert packages()
    assert [release_of(file) for file in packages()] == list(map(release_of, data_archives()))
