"""Who may use the portal: tokens, grants, other sites' pages; a cluster with users."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

import quivermq
from quivermq.errors import InvalidRequest
from quivermq.portal import PortalSettings
from quivermq.testing import Cluster
from tests.portal.stage import WITH_HTTP, portal


@dataclass
class Guarded:
    """A cluster with users, and its portal."""

    cluster: Cluster
    address: str
    root: str
    reader: str


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Cluster(nodes=1, settings={**WITH_HTTP, "users": True}) as cluster:
        with cluster.connect(token="") as client:
            root = client.users.add("root")
            client.users.grant("root", "admin")
        with cluster.connect(token=root) as client:
            reader = client.users.add("reader")
            client.users.grant("reader", "consume", topic="open")
            client.create_topic("open-orders")
            client.create_topic("secret-orders")
            client.produce_many("open-orders", [b"seen"] * 5)
            client.produce_many("secret-orders", [b"unseen"] * 5)
            for topic in ("open-orders", "secret-orders"):
                client.release(client.poll(topic, "late", max_messages=1))
        with portal(cluster.servers, "--interval", "500ms", token=root) as address:
            yield Guarded(cluster, address, root, reader)


@pytest.fixture
def page(browser: Browser, guarded: Guarded) -> Iterator[Page]:
    context = browser.new_context(base_url=guarded.address)
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()


def sign_in(page: Page, token: str) -> None:
    page.goto("/login")
    page.locator("[name=token]").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_pages_ask_for_a_token_which_the_browser_does_not_keep(
    page: Page, guarded: Guarded
) -> None:
    page.goto("/topics")
    page.wait_for_url("**/login?to=/topics")
    page.locator("[name=token]").fill("qv_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".form-error")).to_have_text("The brokers do not accept this token.")
    page.locator("[name=token]").fill(guarded.root)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/topics")
    expect(page.locator("#topics")).to_contain_text("secret-orders")
    (cookie,) = [each for each in page.context.cookies() if each["name"] == "quiver_portal"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert guarded.root not in json.dumps(page.context.storage_state())
    assert guarded.root not in page.content()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    page.goto("/cluster")
    page.wait_for_url("**/login**")


def test_a_phone_can_sign_in(page: Page, guarded: Guarded) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    sign_in(page, guarded.root)
    page.wait_for_url(guarded.address + "/")
    expect(page.locator("#stats")).to_be_visible()


def test_a_user_sees_and_does_what_is_granted(page: Page, guarded: Guarded) -> None:
    sign_in(page, guarded.reader)
    page.wait_for_url(guarded.address + "/")
    expect(page.locator("#truth")).to_contain_text("open-orders")
    expect(page.locator("#attention")).to_contain_text("Nobody works for group late of open-orders")
    expect(page.locator("body")).not_to_contain_text("secret-orders")
    page.goto("/topics/open-orders/messages")
    expect(page.locator("tr[data-expands]")).to_have_count(5)
    page.get_by_role("button", name="Publish").first.click()
    page.locator("#publish [name=value]").fill("x")
    page.locator("#publish").get_by_role("button", name="Publish").click()
    expect(page.locator("#publish .form-error")).to_contain_text("You may not do this")
    page.goto("/users")
    expect(page.locator("main")).to_contain_text("Not allowed")
    page.goto("/topics/secret-orders/messages")
    expect(page.locator("main")).to_contain_text(re.compile("Not allowed|Not found"))
    told = page.request.get("/data/series?s=in@secret-orders&s=in@open-orders").json()
    assert list(told["series"]) == ["in@open-orders"]


def test_users_are_added_granted_and_removed_and_that_is_audited(
    page: Page, guarded: Guarded
) -> None:
    sign_in(page, guarded.root)
    page.wait_for_url(guarded.address + "/")
    page.goto("/users")
    page.get_by_role("button", name="Add user").click()
    page.locator("#add [name=name]").fill("billing")
    page.locator("#add [name=action]").select_option("consume")
    page.locator("#add [name=topic]").fill("open")
    page.locator("#add").get_by_role("button", name="Add user").click()
    expect(page.locator("#secret")).to_be_visible()
    token = page.locator("[data-secret]").text_content() or ""
    with guarded.cluster.connect(token=token) as client:
        assert client.topic_names() == ["open-orders"]
    page.get_by_role("button", name="Done").click()
    row = page.locator("#users tr", has_text="billing")
    expect(row).to_contain_text("consume topics open*")
    row.get_by_role("button", name="Grant").click()
    page.locator("#grant [name=action]").select_option("produce")
    page.locator("#grant").get_by_role("button", name="Grant").click()
    expect(row).to_contain_text("produce")
    row.get_by_role("button", name="Revoke").last.click()
    page.locator("#revoke").get_by_role("button", name="Revoke").click()
    expect(row).not_to_contain_text("produce")
    row.get_by_role("button", name="Remove").click()
    page.locator("#remove [name=confirm]").fill("billing")
    page.locator("#remove").get_by_role("button", name="Remove user").click()
    expect(page.locator("#users")).not_to_contain_text("billing")
    page.goto("/audit?q=billing")
    expect(page.locator("#audit")).to_contain_text("remove_user")
    expect(page.locator("#audit")).to_contain_text("root")


def test_a_session_ends_with_its_token(page: Page, guarded: Guarded) -> None:
    with guarded.cluster.connect(token=guarded.root) as client:
        token = client.users.add("leaving")
        client.users.grant("leaving", "consume")
        sign_in(page, token)
        page.wait_for_url(guarded.address + "/")
        client.users.remove("leaving")
    page.wait_for_url("**/login**")


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Host": "evil.example"}, b"{}"),
        ({"Origin": "http://evil.example"}, b"{}"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"confirm=open-orders"),
        ({"Content-Type": "text/plain"}, b'{"confirm": "open-orders"}'),
    ],
)
def test_pages_of_other_sites_can_do_nothing(
    guarded: Guarded, headers: dict[str, str], body: bytes
) -> None:
    with httpx.Client(base_url=guarded.address) as browser:
        signed = browser.post("/login", json={"token": guarded.root})
        assert signed.status_code == 200
        answer = browser.post(
            "/topics/open-orders/delete",
            content=body,
            headers={"Content-Type": "application/json", **headers},
        )
        assert answer.status_code == 403
        assert browser.get("/topics/open-orders").status_code == 200
        outside = browser.post("/login", json={"token": guarded.root, "to": "//evil.example"})
        assert outside.json()["to"] == "/"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/topics/open-orders/delete", {}),
        ("/topics/open-orders/delete", {"confirm": "secret-orders"}),
        ("/topics/open-orders/groups/g/delete", {"confirm": ""}),
        ("/topics/open-orders/dead-letters/purge", {"all": "yes"}),
        ("/topics/open-orders/dead-letters/redrive", {}),
        ("/users/reader/remove", {"confirm": "root"}),
        ("/users/reader/token", {}),
        ("/cluster/remove", {"node": "1"}),
        ("/cluster/replace", {"node": "1", "confirm": "2"}),
        ("/cluster/upgrade", {}),
    ],
)
def test_what_cannot_be_undone_needs_the_name_also_without_a_page(
    guarded: Guarded, path: str, body: dict[str, str]
) -> None:
    with httpx.Client(base_url=guarded.address) as browser:
        browser.post("/login", json={"token": guarded.root})
        answer = browser.post(path, json=body)
        assert answer.status_code == 400
        assert re.search("Type|Choose", answer.json()["error"])
        assert browser.get("/topics/open-orders").status_code == 200


def test_every_page_forbids_foreign_scripts_and_frames(guarded: Guarded) -> None:
    answer = httpx.get(f"{guarded.address}/login")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert "http://" not in answer.text.replace("http://www.w3.org", "")
    assert httpx.get(f"{guarded.address}/data/series?s=in").status_code == 401


def test_a_value_is_saved_as_it_is_and_never_taken_for_a_page(guarded: Guarded) -> None:
    with guarded.cluster.connect(token=guarded.root) as client:
        client.create_topic("pages")
        client.produce("pages", b"<html>")
    with httpx.Client(base_url=guarded.address) as browser:
        browser.post("/login", json={"token": guarded.root})
        answer = browser.get("/topics/pages/messages/0/0/raw")
        assert answer.content == b"<html>"
        assert answer.headers["content-type"] == "application/octet-stream"
        assert "attachment" in answer.headers["content-disposition"]


def test_tokens_do_not_cross_a_network_in_the_clear() -> None:
    for listen in ("0.0.0.0:8080", "[::]:8080", "portal.example:80"):
        with pytest.raises(InvalidRequest, match="in the clear"):
            PortalSettings(listen=listen).check()
        PortalSettings(listen=listen, insecure=True).check()
        PortalSettings(listen=listen, tls_cert="c", tls_key="k").check()
    for listen in ("127.0.0.1:80", "[::1]:80", "localhost:80"):
        PortalSettings(listen=listen).check()
    with pytest.raises(InvalidRequest, match="interval"):
        PortalSettings(interval=0.0).check()


def test_no_broker_and_no_client_loads_the_portal() -> None:
    program = (
        "import sys, quivermq, quivermq.aio, quivermq.transports, quivermq.cli.serve\n"
        "print({'jinja2', 'uvicorn', 'quivermq.portal'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "set()", quivermq.__version__
