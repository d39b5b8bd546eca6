"""What happens to a cluster once in a while, in a browser: a disk that went back in time, one that
was lost, an upgrade."""

import shutil
from pathlib import Path

from playwright.sync_api import Browser, expect

from quivermq.cluster import FEATURE_LEVEL_MAX
from quivermq.testing import Cluster
from tests.portal.stage import WITH_HTTP, portal
from tests.upgrades.releases import packages, unpacked_package


def test_the_truth_meter_is_red_when_acknowledged_messages_are_gone(browser: Browser) -> None:
    with Cluster(nodes=1, settings=WITH_HTTP) as cluster:
        node = cluster.nodes[1]
        with cluster.connect() as client:
            client.create_topic("orders")
            client.produce_many("orders", [b"kept"] * 50)
        node.stop()
        older = node.data_dir.with_name("yesterday")
        shutil.copytree(node.data_dir, older)
        node.start()
        cluster.wait_ready()
        with cluster.connect() as client:
            client.produce_many("orders", [b"lost"] * 50)
        with portal(cluster.servers, "--interval", "500ms") as address:
            page = browser.new_page(base_url=address)
            page.goto("/")
            tally = page.locator(".tally-card", has_text="orders")
            expect(tally).to_contain_text("100 stored")
            expect(tally).to_contain_text("adds up")
            # Somebody puts yesterday's disk back. One broker alone has nobody to tell it.
            node.stop()
            shutil.rmtree(node.data_dir)
            older.rename(node.data_dir)
            node.start()
            expect(tally).to_contain_text("does not add up")
            expect(tally).to_contain_text("partition 0: 100 messages were stored, and now 50 are")
            assert "wrong" in (tally.get_attribute("class") or "")
            red = "getComputedStyle(document.querySelector('.tally-card.wrong .pill')).color"
            assert page.evaluate(red) == "rgb(194, 53, 43)"
            notice = page.locator("#attention a.notice.bad", has_text="orders does not add up")
            notice.click()
            page.wait_for_url("**/topics/orders")
            expect(page.locator("#truth .wrong")).to_contain_text("and now 50 are")
            page.close()


def test_a_broker_that_lost_its_disk_is_replaced(browser: Browser) -> None:
    with Cluster(nodes=3, settings=WITH_HTTP) as cluster, cluster.connect() as client:
        client.create_topic("orders", partitions=2)
        client.produce_many("orders", [b"%d" % number for number in range(500)])
        lost = cluster.nodes[3]
        with portal(cluster.servers, "--interval", "500ms") as address:
            page = browser.new_page(base_url=address)
            page.goto("/cluster")
            lost.kill()
            shutil.rmtree(lost.data_dir)
            row = page.locator("#brokers tr", has_text=lost.address)
            expect(row).to_contain_text("down")
            row.get_by_role("button", name="Replace").click()
            button = page.locator("#replace").get_by_role("button", name="Replace")
            expect(button).to_be_disabled()
            page.locator("#replace [name=confirm]").fill("3")
            button.click()
            expect(page.locator(".toast")).to_have_text(
                "Broker 3 may start with an empty data directory"
            )
            lost.start()
            cluster.wait_ready()
            expect(row).to_contain_text("serving")
            # It copies what it held before from the others.
            page.goto("/topics/orders")
            expect(page.locator("#partitions .pill.ok")).to_have_count(2)
            cluster.wait_until(
                lambda: all(
                    set(each.in_sync) == {1, 2, 3} for each in client.topic("orders").partitions
                ),
                "broker 3 does not have its replicas back",
            )
            page.close()
        client.transfer("orders", 0, to=3)
        client.transfer("orders", 1, to=3)
        read = [m.value for number in (0, 1) for m in client.read("orders", partition=number)]
        assert sorted(map(int, read)) == list(range(500))


def test_a_cluster_of_an_earlier_release_is_raised(browser: Browser, tmp_path: Path) -> None:
    made = Cluster(nodes=1)
    node = made.nodes[1]
    node.code = unpacked_package(packages()[-1], tmp_path)
    with made as cluster:
        with cluster.connect() as client:
            client.create_topic("orders")
            client.produce("orders", b"from an earlier release")
        node.settings |= WITH_HTTP
        node.change_release(None)
        cluster.wait_ready()
        with cluster.connect() as client, portal(cluster.servers) as address:
            assert client.cluster().level < FEATURE_LEVEL_MAX
            page = browser.new_page(base_url=address)
            page.goto("/cluster")
            page.get_by_role("button", name=f"Raise to feature level {FEATURE_LEVEL_MAX}").click()
            button = page.locator("#upgrade").get_by_role("button", name="Raise")
            expect(button).to_be_disabled()
            page.locator("#upgrade [name=confirm]").fill("upgrade")
            button.click()
            expect(page.locator(".toast")).to_have_text(
                f"The cluster is at feature level {FEATURE_LEVEL_MAX}"
            )
            assert client.cluster(latest=True).level == FEATURE_LEVEL_MAX
            page.goto("/cluster")
            expect(page.get_by_role("button", name="Raise to feature level")).to_have_count(0)
            assert [message.value for message in client.read("orders", partition=0)] == [
                b"from an earlier release"
            ]
            page.close()
