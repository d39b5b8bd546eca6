"""Every page with real data, and every action on topics, messages, groups and letters."""

import json
import re
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

import quivermq
from quivermq.batches import EXPIRES
from quivermq.errors import TopicNotFound
from quivermq.testing import Cluster
from tests.portal.stage import HOSTILE, report

pytestmark = pytest.mark.usefixtures("client")


def submit(page: Page, dialog: str, label: str) -> None:
    page.locator(f"dialog{dialog}").get_by_role("button", name=label, exact=True).click()


def said(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator(".toast", has_text=text).first).to_be_visible()


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/", ["Overview", "A cluster of 2 stops when either is down.", "adds up", "orders"]),
        ("/topics", ["orders", "payments", "5,000", "tracking-events-enriched", "7d"]),
        ("/topics/payments", ["payments", "in sync", "ledger", "7d"]),
        ("/topics/orders/messages?partition=1", ["c-", '{"order": 10']),
        ("/topics/payments/groups", ["ledger", "3,000", "1,960", "shared"]),
        ("/topics/payments/groups/ledger", ["1,960", "Members", "shared group"]),
        ("/topics/mail/delayed", ["Not due yet", "1 message"]),
        ("/topics/mail/dead-letters", ["no such mailbox", "postmen", "to nobody@example.com"]),
        ("/groups", ["billing", "ledger", "postmen"]),
        ("/dead-letters", ["mail", "mailbox full"]),
        ("/cluster", ["Brokers", "leads the cluster", "metadata", "Nothing is being moved."]),
        ("/cluster?every=1", ["orders / 2", "follower"]),
        ("/pipelines", ["No pipeline has reported"]),
        ("/users", ["No users"]),
        ("/audit", ["Nothing is recorded"]),
    ],
)
def test_a_page_shows_what_the_cluster_holds(page: Page, path: str, texts: list[str]) -> None:
    page.goto(path)
    for text in texts:
        expect(page.locator("body")).to_contain_text(text)


def test_the_overview_draws_its_charts_and_counts_what_is_true(
    page: Page, client: quivermq.Client
) -> None:
    client.create_topic("counted")
    page.goto("/")
    client.produce_many("counted", [b"more"] * 100)
    held = client.poll("counted", group="g", max_messages=40)
    client.ack(held[:30])
    chart = page.locator("[data-chart]").first
    expect(chart.locator("path.line").first).to_be_attached()
    tally = page.locator(".tally-card", has_text="counted")
    expect(tally).to_contain_text(re.compile(r"100 acknowledged\s*=\s*100 stored"))
    expect(tally).to_contain_text("30 delivered")
    expect(tally.locator("rect.in_flight")).to_be_attached()
    expect(page.locator(".tally-card.wrong")).to_have_count(0)
    page.get_by_role("button", name="1 h").click()
    expect(page.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")


def test_a_topic_is_created_altered_published_to_and_deleted(
    page: Page, client: quivermq.Client
) -> None:
    page.goto("/topics")
    page.get_by_role("button", name="Create topic").click()
    page.locator("#create [name=name]").fill("bad name!")
    submit(page, "#create", "Create topic")
    expect(page.locator("#create .form-error")).to_contain_text("bad name!")
    page.locator("#create [name=name]").fill("made-here")
    page.locator("#create [name=partitions]").fill("2")
    page.locator("#create [name=max_age]").fill("12h")
    submit(page, "#create", "Create topic")
    page.wait_for_url("**/topics/made-here")
    assert client.topic("made-here").retention.max_age == 12 * 3600

    page.get_by_role("button", name="Settings").click()
    page.locator("#alter [name=rate_limit]").fill("7.5")
    page.locator("#alter [name=partitions]").fill("3")
    page.locator("#alter [name=drop_expired]").check()
    submit(page, "#alter", "Save")
    said(page, "The settings of made-here are changed")
    altered = client.topic("made-here")
    assert altered.rate_limit == quivermq.RateLimit(7.5)
    assert (len(altered.partitions), altered.retention.max_age) == (3, 12 * 3600)
    assert altered.retry == quivermq.Retry()
    assert altered.drop_expired
    expect(page.locator("#settings")).to_contain_text("7.5 a second")

    page.get_by_role("button", name="Publish").first.click()
    page.locator("#publish [name=value]").fill('{"from": "the portal"}')
    page.locator("#publish [name=key]").fill("k")
    page.locator("#publish [name=headers]").fill("trace: 7\nsource: portal")
    page.locator("#publish [name=priority]").select_option("5")
    page.locator("#publish [name=partition]").select_option("1")
    page.locator("#publish [name=content_type]").fill("application/json")
    page.locator("#publish [name=ttl]").fill("1h")
    submit(page, "#publish", "Publish")
    said(page, "Stored in partition 1 as message 0")
    (message,) = client.read("made-here", partition=1)
    assert (message.value, message.key, message.priority) == (b'{"from": "the portal"}', b"k", 5)
    assert message.headers.items() >= {"trace": b"7", "source": b"portal"}.items()
    assert message.content_type == "application/json"
    assert message.headers[EXPIRES]

    page.reload()
    page.get_by_role("button", name="Delete", exact=True).click()
    button = page.locator("#delete").get_by_role("button", name="Delete topic")
    expect(button).to_be_disabled()
    page.locator("#delete [name=confirm]").fill("made-her")
    expect(button).to_be_disabled()
    page.locator("#delete [name=confirm]").fill("made-here")
    button.click()
    page.wait_for_url("**/topics")
    with pytest.raises(TopicNotFound):
        client.topic("made-here")


def test_topics_are_filtered_sorted_and_paged_by_the_server(
    page: Page, client: quivermq.Client
) -> None:
    for number in range(53):
        client.create_topic(f"many-{number:03}", replication=1)
    page.goto("/topics?q=many-")
    expect(page.locator("#topics tbody tr")).to_have_count(50)
    expect(page.locator(".pager")).to_contain_text("53 topics of")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("#topics tbody tr")).to_have_count(3)
    expect(page.locator("#topics tbody tr").last).to_contain_text("many-052")
    page.goto("/topics?sort=size")
    expect(page.locator("#topics tbody tr").first).to_contain_text("payments")
    page.goto("/topics?q=nothing-of-this-name")
    expect(page.locator("#topics")).to_contain_text("No topic matches")


def test_a_message_with_script_is_text_wherever_it_is_shown(
    page: Page, client: quivermq.Client
) -> None:
    client.create_topic("hostile", max_deliveries=1)
    client.produce("hostile", HOSTILE, key=HOSTILE, headers={"<b>h</b>": HOSTILE})
    page.goto("/topics/hostile/messages")
    row = page.locator("tr[data-expands]")
    expect(row).to_contain_text("<script>window.hacked = 1</script>")
    row.click()
    expect(page.locator("pre.payload")).to_have_text(HOSTILE.decode())
    expect(page.locator(".pairs")).to_contain_text("<b>h</b>")
    page.goto("/topics/hostile/messages?follow=1")
    client.produce("hostile", HOSTILE)
    expect(page.locator("tr[data-expands]")).to_have_count(2)
    for message in client.poll("hostile", group="g"):
        message.reject(HOSTILE.decode())
    page.goto("/topics/hostile/dead-letters")
    expect(page.locator("tr[data-expands]").first).to_contain_text("<script>")
    page.goto(f"/topics/hostile/messages?q={HOSTILE.decode().replace('<', '%3C')}&at=1h")
    expect(page.locator("tr[data-expands]")).to_have_count(2)
    page.goto("/topics/<img src=x onerror=window.hacked=3>")
    expect(page.locator("main")).to_contain_text("<img src=x onerror=window.hacked=3>")
    assert page.evaluate("window.hacked") is None


def test_messages_are_browsed_by_offset_time_and_text(page: Page, client: quivermq.Client) -> None:
    client.create_topic("browsed")
    client.produce_many("browsed", [f"early {n}".encode() for n in range(500)])
    middle = datetime.now(UTC).isoformat()
    client.produce_many("browsed", [f"late {n}".encode() for n in range(500)])
    first = page.locator("tr[data-expands]").first
    page.goto("/topics/browsed/messages")
    expect(first).to_contain_text("late 450")
    page.get_by_role("link", name="Older").click()
    expect(first).to_contain_text("late 400")
    page.get_by_role("link", name="Newer").click()
    expect(first).to_contain_text("late 450")
    page.get_by_role("link", name="Earliest").click()
    expect(first).to_contain_text("early 0")
    page.get_by_label("From offset").fill("123")
    page.get_by_role("button", name="Show").click()
    expect(first).to_contain_text("early 123")
    page.goto("/topics/browsed/messages")
    page.locator("[name=at]").fill(middle)
    page.get_by_role("button", name="Show").click()
    expect(first).to_contain_text("late 0")
    page.goto("/topics/browsed/messages?q=LATE+33&where=value")
    expect(page.locator("tr[data-expands]")).to_have_count(11)
    page.goto("/topics/browsed/messages?q=nothing-like-it")
    expect(page.locator("#messages")).to_contain_text("Nothing found so far")
    expect(page.locator(".pager")).to_contain_text("Looked through 0 to 1,000")
    page.goto("/topics/browsed/messages?view=hex&offset=0")
    first.click()
    expect(page.locator("pre.payload").first).to_contain_text("65 61 72 6c 79 20 30")
    page.goto("/topics/browsed/messages?at=yesterday")
    expect(page.locator("main")).to_contain_text("is no time")


def test_a_message_is_followed_copied_and_published_again(
    page: Page, client: quivermq.Client
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    client.create_topic("followed")
    page.goto("/topics/followed/messages?follow=1")
    for number in range(3):
        client.produce("followed", json.dumps({"n": number}), key=b"k", headers={"a": b"b"}, ttl=60)
        expect(page.locator("tr[data-expands]").first).to_contain_text(f'{{"n": {number}}}')
    page.locator("tr[data-expands]").first.click()
    page.get_by_role("button", name="Copy").first.click()
    said(page, "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == '{\n  "n": 2\n}'
    page.get_by_role("button", name="Publish again").first.click()
    submit(page, "#again", "Publish again")
    said(page, "Published again, in partition 0 as 3")
    *_, last = client.read("followed", partition=0)
    assert (last.value, last.key, last.headers) == (b'{"n": 2}', b"k", {"a": b"b"})


def test_a_group_is_explained_moved_and_deleted(page: Page, client: quivermq.Client) -> None:
    client.create_topic("grouped")
    client.produce_many("grouped", [b"x"] * 10)
    client.ack(client.poll("grouped", group="team", max_messages=4))
    page.goto("/topics/grouped/groups/team")
    page.locator("[name=offset]").first.fill("2")
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#why")).to_have_text(
        "Message 2 of partition 0 is done: everything below 4 is."
    )
    page.locator("[name=offset]").first.fill("7")
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#why")).to_contain_text("no consumer of team polls")
    client.nack(client.poll("grouped", group="team", max_messages=2), delay=0)
    held = client.poll("grouped", group="team", max_messages=3, visibility=3600, wait=10)
    leased = page.locator("#leased tbody tr")
    expect(leased.first).to_contain_text("59m")
    # Those that failed once are delivered for the second time.
    expect(page.locator("#leased .pill.warn").first).to_have_text("2")
    page.locator("[name=offset]").first.fill(str(held[0].offset))
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#why")).to_contain_text("is in flight: ")
    expect(page.locator("#why")).to_contain_text("as its delivery no. 2")
    page.get_by_role("button", name="Move").click()
    page.locator("#seek [name=to]").select_option("offset")
    page.locator("#seek [name=offset]").fill("9")
    submit(page, "#seek", "Move group")
    said(page, "Group team goes on at 9 in 0")
    assert client.group("grouped", "team").lag == 1
    expect(page.locator("#stats")).to_contain_text(re.compile(r"Waiting\s*1to"))
    page.get_by_role("button", name="Delete", exact=True).click()
    page.locator("#delete [name=confirm]").fill("team")
    submit(page, "#delete", "Delete group")
    page.wait_for_url("**/topics/grouped/groups")
    assert client.groups("grouped") == []


def test_dead_letters_are_looked_at_redriven_and_purged(
    page: Page, client: quivermq.Client
) -> None:
    client.create_topic("letters", max_deliveries=1)
    client.produce_many("letters", [b"one", b"two", b"three"])
    for message, reason in zip(
        client.poll("letters", group="g", max_messages=3), ("first", "other", "other"), strict=True
    ):
        message.reject(reason)
    rows = page.locator("#chosen tr[data-expands]")
    page.goto("/topics/letters/dead-letters")
    expect(rows).to_have_count(3)
    page.get_by_role("link", name="other · 2").click()
    expect(rows).to_have_count(2)
    rows.first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Redrive chosen").click()
    submit(page, "#redrive-chosen", "Redrive chosen")
    said(page, "1 dead letter of letters redriven")
    page.goto("/topics/letters/dead-letters")
    expect(rows).to_have_count(2)
    (again,) = client.poll("letters", group="g", wait=10)
    assert (again.value, again.offset) == (b"two", 1)
    again.reject("other")
    expect(rows).to_have_count(3)
    rows.last.get_by_role("checkbox").check()
    page.get_by_role("button", name="Redrive chosen").click()
    page.locator("#redrive-chosen [name=to]").select_option("all")
    submit(page, "#redrive-chosen", "Redrive chosen")
    expect(rows).to_have_count(2)
    assert [message.value for message in client.read("letters", partition=0)][3:] == [b"two"]
    rows.first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Purge chosen").click()
    submit(page, "#purge-chosen", "Purge chosen")
    said(page, "1 dead letter dropped")
    page.goto("/topics/letters/dead-letters")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Purge all").first.click()
    page.locator("#purge-all [name=confirm]").fill("letters")
    submit(page, "#purge-all", "Purge all")
    said(page, "1 dead letter dropped")
    assert client.dead_letters("letters") == []


def test_delayed_messages_are_cancelled(page: Page, client: quivermq.Client) -> None:
    client.create_topic("later")
    client.produce("later", b"in an hour", delay=3600)
    page.goto("/topics/later/delayed")
    page.locator("td").get_by_role("button", name="Cancel").click()
    submit(page, "#cancel", "Cancel them")
    said(page, "1 delayed message cancelled")
    expect(page.locator("#delayed")).to_contain_text("No delayed messages")
    assert client.delayed("later") == []


def test_a_pipeline_that_reports_is_shown_with_its_trouble(
    page: Page, client: quivermq.Client
) -> None:
    report(client)
    client.produce("_pipelines", b"<b>no report</b>", key=b"orders-to-lake")
    page.goto("/pipelines")
    for text in ("orders-to-lake", "running", "lake/orders", "48,000", "310", "940 ms"):
        expect(page.locator("#pipelines")).to_contain_text(text)
    expect(page.locator(".notice.warn")).to_contain_text("2 rows of orders could not be parsed")


def test_leaders_are_transferred_and_spread(
    page: Page, client: quivermq.Client, cluster: Cluster
) -> None:
    client.create_topic("led")
    to = 3 - cluster.leader("led")
    page.goto("/cluster")
    page.get_by_role("button", name="Transfer a leader").click()
    page.locator("#transfer [name=topic]").fill("led")
    page.locator("#transfer [name=to]").select_option(str(to))
    submit(page, "#transfer", "Transfer")
    said(page, f"Broker {to} leads partition 0 of led")
    assert client.topic("led").partitions[0].leader == to
    page.get_by_role("button", name="Rebalance").click()
    page.locator("#rebalance [name=leaders_only]").check()
    submit(page, "#rebalance", "Rebalance")
    said(page, re.compile("Balanced|Moving"))


def test_a_broker_is_added_and_removed(
    page: Page, client: quivermq.Client, cluster: Cluster
) -> None:
    node = cluster.add_node(start=False)
    node.settings["join"] = ""
    node.start()
    page.goto("/cluster")
    page.get_by_role("button", name="Add broker").click()
    page.locator("#add [name=address]").fill(node.address)
    submit(page, "#add", "Add broker")
    said(page, f"Broker {node.id} joined")
    row = page.locator("#brokers tr", has_text=node.address)
    expect(row).to_contain_text("serving")
    row.get_by_role("button", name="Remove").click()
    button = page.locator("#remove").get_by_role("button", name="Remove broker")
    expect(button).to_be_disabled()
    page.locator("#remove [name=confirm]").fill(str(node.id))
    button.click()
    said(page, f"Broker {node.id} is leaving")
    expect(row).to_have_count(0)
    assert node.id not in [each.id for each in client.cluster(latest=True).nodes]
    cluster.drop_node(node.id)


def test_a_phone_has_a_menu_and_no_page_wider_than_it(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("/", "/topics", "/topics/orders", "/topics/orders/messages", "/cluster", "/users"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    expect(page.locator(".sidebar")).not_to_be_visible()
    page.locator(".menu-button").click()
    page.locator(".sidebar").get_by_role("link", name="Groups").click()
    expect(page.get_by_role("heading", name="Groups")).to_be_visible()


def test_long_names_and_reasons_fit_a_phone(page: Page, client: quivermq.Client) -> None:
    name, group = "n" * 200, "g" * 200
    client.create_topic(name, max_deliveries=1)
    client.produce_many(name, [b"v" * 3000, b"short"])
    first, _ = client.poll(name, group=group, max_messages=2)
    first.reject("a reason of many words " * 20)
    page.set_viewport_size({"width": 390, "height": 844})
    of_topic = f"/topics/{name}"
    for path in (
        "/", "/topics", "/groups", "/cluster?every=1", of_topic, f"{of_topic}/messages",
        f"{of_topic}/groups", f"{of_topic}/groups/{group}", f"{of_topic}/dead-letters",
    ):  # fmt: skip
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_light_and_dark_are_kept(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/")
    with page.expect_response("**/theme"):
        page.get_by_role("button", name="Light or dark").click()
    page.goto("/topics")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
