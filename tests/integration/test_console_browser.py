"""Test the console's main paths in a browser: Chromium of the system, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raymq.client import Connection, ReceivedMessage
from raymq.console.console_server import ConsoleSettings
from tests.console_data import Shop, accept
from tests.console_thread import running_console
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

playwright_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium is installed (Debian: apt-get install chromium)", allow_module_level=True)

Page = playwright_api.Page
PHONE = {"width": 360, "height": 740}

#: Lets a test hide a tab, as its browser does with those behind another one; it begins hidden.
HIDEABLE = """Object.defineProperties(document, {
    hidden: {get: () => !window.isShown},
    visibilityState: {get: () => window.isShown ? "visible" : "hidden"},
});"""
SHOW = "shown => { window.isShown = shown; document.dispatchEvent(new Event('visibilitychange')); }"


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright_api.Browser]:
    with playwright_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@dataclass
class Console:
    """A console with the shop's data, and what its pages requested and complained of."""

    url: str
    token: str
    shop: Shop
    browser: playwright_api.Browser
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def page(self, **options: object) -> Page:
        """Open a page whose requests and complaints are recorded."""
        page = self.browser.new_context(**options).new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(self.url)
        return page

    def sign_in(self, page: Page) -> None:
        page.get_by_role("link", name="Enter token").click()
        page.get_by_label("Token").fill(self.token)
        page.get_by_role("button", name="Allow writes").click()
        page.get_by_role("button", name="Sign out").wait_for()

    def check_complaints(self) -> None:
        """Check that no page complained, and that none asked another server for anything."""
        assert self.complaints == []
        assert {url for url in self.requests if not url.startswith(self.url)} == set()


@pytest.fixture
def console(mq: Connection, tmp_path: Path, browser: playwright_api.Browser) -> Iterator[Console]:
    shop = Shop(mq)
    shop.trade(8)
    with shop.billing():
        shop.pour_poison()
        shop.dead_letters(1)
    token_file = tmp_path / "token"
    with running_console(mq, ConsoleSettings(token_file=token_file)) as url:
        made = Console(url, token_file.read_text().strip(), shop, browser)
        yield made
        for context in browser.contexts:
            context.close()


def paths(console: Console) -> list[str]:
    order = console.shop.admin.query_by_key("orders", "order-4001")[0]
    return [
        *("", "topics", "topics/orders", "groups", "groups/billing", "groups/billing/dead-letters"),
        *(f"messages/{order.message_id}", "messages?topic=orders&key=order-4001", "delayed", "transactions"),
        *("topics/none", "sign-in"),
    ]


def test_poison_message_is_found_and_redriven(console: Console) -> None:
    page = console.page()
    console.sign_in(page)
    page.get_by_role("link", name="Groups", exact=True).click()
    page.get_by_role("link", name="billing").click()
    page.get_by_role("link", name="Dead letters").click()
    row = page.get_by_role("row").filter(has_text="could not convert string to float")
    row.get_by_role("link", name="7F000001").click()
    body = page.get_by_role("region", name="Body", exact=True)
    assert '"amount": "twelve"' in body.inner_text()
    page.go_back()
    page.get_by_role("checkbox", name="select 7F000001").check()
    page.get_by_label("at most per second").fill("100")
    page.get_by_role("button", name="dry run").click()
    page.get_by_text("Dry run: nothing was sent.").wait_for()
    page.go_back()
    page.get_by_role("checkbox", name="select 7F000001").check()
    page.get_by_role("button", name="Redrive", exact=True).click()
    page.get_by_text("1 redriven.").wait_for()
    received: list[ReceivedMessage] = []

    def repaired(messages: list[ReceivedMessage]) -> object:
        received.extend(messages)
        return accept(messages)

    with console.shop.billing(repaired):  # type: ignore[arg-type]
        poll_until(lambda: any(message.keys == ["order-4711"] for message in received), 20, "the redriven order")
    console.check_complaints()


def start_slow_redrive(console: Console) -> Page:
    """Redrive two dead letters slowly enough that the page is open while it runs."""
    with console.shop.billing():
        console.shop.pour_poison()
        console.shop.dead_letters(2)
    page = console.page()
    console.sign_in(page)
    page.goto(console.url + "groups/billing/dead-letters")
    page.get_by_role("checkbox", name="all dead letters").check()
    page.get_by_label("at most per second").fill("0.1")
    page.get_by_role("button", name="Redrive", exact=True).click()
    page.get_by_text("Running").wait_for()
    return page


def test_page_of_a_redrive_survives_a_failed_poll(console: Console) -> None:
    page = start_slow_redrive(console)
    page.route("**/redrives/*", lambda route: route.abort())
    page.get_by_text("The console does not answer.").wait_for()
    page.unroute("**/redrives/*")
    page.get_by_text("2 redriven.").wait_for(timeout=40_000)
    assert page.get_by_text("The console does not answer.").count() == page.locator("#job-silent[hidden]").count() == 1


def test_page_of_a_redrive_says_that_the_console_was_restarted(console: Console) -> None:
    page = start_slow_redrive(console)
    page.route("**/redrives/*", lambda route: route.fulfill(status=404))
    page.get_by_text("This console was restarted").wait_for()
    assert page.locator("#job").count() == 0
    assert not page.get_by_text("Running").is_visible()


def test_stalled_group_is_seen_from_the_overview(console: Console) -> None:
    console.shop.stall_analytics()
    console.shop.trade(5)
    page = console.page()
    row = page.get_by_role("row").filter(has_text="analytics").filter(has_text="no member connected")
    row.wait_for()  # The sample after this one brings it: the page refreshes itself.
    row.get_by_role("link", name="analytics").click()
    page.get_by_text("No member is connected.").wait_for()
    assert page.locator(".tiles li").filter(has_text="Lag").locator(".figure").inner_text() == "15"
    row = page.get_by_role("row").filter(has_text="clickstream").first
    row.get_by_role("link", name="broker-a:0").click()
    page.get_by_role("heading", name="Topic clickstream").wait_for()
    console.check_complaints()


def test_live_tail_shows_new_messages(console: Console) -> None:
    page = console.page()
    page.goto(console.url + "topics/orders")
    page.get_by_role("button", name="Follow new messages").click()
    page.get_by_text("Following:").wait_for()

    def arrives() -> bool:
        console.shop.trade(1)
        page.wait_for_timeout(100)
        return page.locator("#tail-rows tr").count() > 0

    poll_until(arrives, 15, "a message of the tail")
    assert "messages came" in page.locator("#tail-state").inner_text()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped:").wait_for()
    console.check_complaints()


def follow(console: Console, page: Page) -> None:
    """Follow the orders until a row is there."""
    page.goto(console.url + "topics/orders")
    page.get_by_role("button", name="Follow new messages").click()
    page.get_by_text("Following:").wait_for()
    poll_until(lambda: more_arrives(console, page, 0), 15, "a message of the tail")


def more_arrives(console: Console, page: Page, rows: int) -> bool:
    """Send an order, and return whether the tail has more rows than before."""
    console.shop.trade(1)
    page.wait_for_timeout(100)
    return bool(page.locator("#tail-rows tr").count() > rows)


def test_live_tail_holds_its_rows_under_the_pointer(console: Console) -> None:
    page = console.page()
    follow(console, page)
    page.locator("#tail-rows tr").first.hover()
    rows = page.locator("#tail-rows tr").count()

    def is_held() -> bool:
        return more_arrives(console, page, rows) or "held back" in page.locator("#tail-state").inner_text()

    poll_until(is_held, 15, "a message that is held back")
    assert page.locator("#tail-rows tr").count() == rows
    page.get_by_role("heading", name="Live tail").hover()
    poll_until(lambda: page.locator("#tail-rows tr").count() > rows, 10, "its row")
    assert "held back" not in page.locator("#tail-state").inner_text()
    console.check_complaints()


def test_live_tail_of_a_hidden_tab_pauses_and_says_so(console: Console) -> None:
    page = console.page()
    page.context.add_init_script(HIDEABLE)
    follow(console, page)
    rows = page.locator("#tail-rows tr").count()
    page.evaluate(SHOW, False)
    console.shop.trade(3)
    page.evaluate(SHOW, True)
    page.get_by_text("while this tab was hidden were missed").wait_for()
    poll_until(lambda: more_arrives(console, page, rows), 15, "a message after the break")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped:").wait_for()


def test_live_figures_can_be_paused(console: Console) -> None:
    page = console.page()
    switch = page.get_by_role("button", name="Live")
    assert switch.get_attribute("aria-pressed") == "true"
    switch.click()
    assert page.get_by_role("button", name="Paused").get_attribute("aria-pressed") == "false"
    console.check_complaints()


def test_hidden_tabs_hold_no_connection(console: Console) -> None:
    context = console.page().context
    context.add_init_script(HIDEABLE)
    tabs = [context.new_page() for _ in range(9)]
    for tab in tabs:
        tab.set_default_timeout(15_000)
        tab.goto(console.url + "topics")
        tab.evaluate(SHOW, True)
        tab.get_by_role("button", name="Live").wait_for()
        tab.evaluate(SHOW, False)
    console.shop.admin.create_topic("created-meanwhile", queues=1)
    tabs[0].evaluate(SHOW, True)
    tabs[0].get_by_role("link", name="created-meanwhile").wait_for()
    assert tabs[1].get_by_role("link", name="created-meanwhile").count() == 0


def test_banner_comes_and_goes_on_an_open_page(services: Services, console: Console) -> None:
    page = console.page()
    banner = page.get_by_text("Not reachable: broker-b")
    assert banner.count() == 0
    services.stop_broker("broker-b")
    banner.wait_for(timeout=40_000)
    services.start_broker("broker-b")
    banner.wait_for(state="detached", timeout=40_000)
    console.check_complaints()


def test_figures_are_held_only_for_the_keyboard(console: Console) -> None:
    page = console.page()
    page.goto(console.url + "topics")
    page.get_by_role("cell", name="invoices").click(position={"x": 2, "y": 2})
    console.shop.admin.create_topic("created-meanwhile", queues=1)
    page.get_by_role("link", name="created-meanwhile").wait_for()
    page.get_by_role("button", name="Filter").focus()
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Held").wait_for()
    page.keyboard.press("Shift+Tab")
    page.get_by_role("button", name="Live").wait_for()
    console.check_complaints()


@pytest.mark.parametrize("status", [503, None])
def test_failed_refresh_is_said(console: Console, status: int | None) -> None:
    page = console.page()
    page.goto(console.url + "topics")
    page.route("**/topics", lambda route: route.abort() if status is None else route.fulfill(status=status))
    page.get_by_role("button", name="Not updated").wait_for()
    page.unroute("**/topics")
    page.get_by_role("button", name="Live").wait_for()


def test_filter_narrows_the_list_without_a_reload(console: Console) -> None:
    page = console.page()
    page.goto(console.url + "topics")
    page.get_by_label("Name contains").fill("pay")
    poll_until(lambda: page.locator("tbody tr").count() == 1, 10, "one topic")
    assert page.url.endswith("filter=pay")
    console.check_complaints()


#: What is wider than the screen, outside of the body of a message, and boxes of tables that would have to be scrolled.
OUTSIDE = """() => [...document.querySelectorAll("main *")].filter(each =>
    (!each.closest(".scroll, pre, svg, .hidden, thead") && each.getBoundingClientRect().right > innerWidth + 1)
    || (each.matches(".scroll") && each.scrollWidth > each.clientWidth)).map(each => each.outerHTML.slice(0, 200))"""


def test_pages_fit_a_phone_and_complain_of_nothing(console: Console) -> None:
    console.shop.plan_reminders()
    console.shop.leave_transactions_open()
    page = console.page(viewport=PHONE)
    console.sign_in(page)
    for path in paths(console):
        page.goto(console.url + path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], f"/{path} scrolls sideways: {width} px"
        outside = page.evaluate(OUTSIDE)
        assert outside == [], path
    console.complaints = [text for text in console.complaints if "404 (Not Found)" not in text]
    console.check_complaints()


def contrast(page: Page, selector: str) -> float:
    """Return the contrast of the first such text with the ground of the page or of its box."""
    script = """element => {
        const light = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(Number).map(each => each / 255)
            .map(each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
            .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
        let box = element;
        while (box && getComputedStyle(box).backgroundColor === "rgba(0, 0, 0, 0)") box = box.parentElement;
        const [high, low] = [getComputedStyle(element).color, getComputedStyle(box || document.body).backgroundColor]
            .map(light).sort((one, other) => other - one);
        return (high + 0.05) / (low + 0.05);
    }"""
    ratio: float = page.locator(selector).first.evaluate(script)
    return ratio


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_are_readable(console: Console, scheme: str) -> None:
    page = console.page(color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(15, 20, 26)") is (scheme == "dark")
    for selector in ("h1", ".bar nav a", ".label", ".figure", ".status.good", "th", "footer p", "main a", ".none"):
        assert contrast(page, selector) >= 4.5, selector
    page.goto(console.url + "topics/none")
    assert contrast(page, ".note") >= 4.5


def test_main_paths_are_reached_by_keyboard(console: Console) -> None:
    page = console.page()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(console.url)
    names = []
    for _ in range(12):
        page.keyboard.press("Tab")
        names.append(focused(page))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", names[-1]
    links = ["Overview", "Topics", "Groups", "Messages", "Delayed", "Transactions"]
    assert [name for name in names if name in links] == links
    assert "Enter token" in names
    page.get_by_role("link", name="Groups", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Groups").wait_for()
    unlabelled = page.evaluate(
        "[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
        ".filter(each => !each.labels.length && !each.ariaLabel).length"
    )
    assert unlabelled == 0
    console.check_complaints()


def focused(page: Page) -> str:
    text: str = page.evaluate("document.activeElement.innerText")
    return text.strip()
