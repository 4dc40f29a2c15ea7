"""Take the screenshots of docs/console.md: `python -m tests.console_screenshots`.

A shop's programs run on brokers in this process. An hour of their figures is sampled within seconds: only the clock of
the samples is ahead. Chromium has to be installed; pngquant, where it is, makes the files smaller.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from raymq.client import Connection
from raymq.console.cluster_sampler import ClusterSampler
from raymq.console.console_server import ConsoleSettings
from tests.console_data import Shop
from tests.console_thread import running_console
from tests.integration.conftest import Services
from tests.polling import poll_until

SAMPLES = 120
SAMPLE_SECONDS = 30.0
#: What group shipping may have left when a sample is taken.
LEFT = 0
WIDTHS = {"wide": 1280, "narrow": 360}


class AcceleratedClock:
    """The clock of the samples: it starts an hour ago, and is the real one when it has caught up."""

    def __init__(self) -> None:
        self.ahead = -SAMPLES * SAMPLE_SECONDS

    def __call__(self) -> float:
        return time.time() + min(0.0, self.ahead)


@contextlib.contextmanager
def trading(shop: Shop) -> Iterator[None]:
    """Trade on a thread of its own."""
    end = threading.Event()

    def trade() -> None:
        while not end.wait(2.0):
            shop.trade(1)

    thread = threading.Thread(target=trade)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def live_an_hour(shop: Shop, clock: AcceleratedClock) -> ClusterSampler:
    """Trade and sample until the clock has caught up; group analytics loses its member on the way."""
    sampler = ClusterSampler(shop.admin, clock)
    with shop.shipping(), shop.billing():
        for number in range(SAMPLES):
            shop.trade(2 + round(2 + 2 * math.sin(number / 14)))
            if number == SAMPLES // 2:
                shop.stall_analytics()
            if number % 30 == 20:
                shop.pour_poison()
            poll_until(lambda: shop.lag("shipping") <= LEFT, 20, "the group shipping")
            asyncio.run(sampler.sample())
            clock.ahead += SAMPLE_SECONDS
        shop.dead_letters(4)
    clock.ahead = 0.0
    return sampler


def shoot(page: Page, folder: Path, name: str) -> None:
    """Write one picture of the whole page, at most 1,700 pixels of it."""
    path = folder / f"{name}.png"
    height = min(page.evaluate("document.documentElement.scrollHeight"), 1_700)
    page.screenshot(
        path=path, clip={"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}, full_page=True
    )
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--skip-if-larger", "--output", path, "64", path], check=False)


def paths(shop: Shop) -> dict[str, str]:
    """Return the address of each page that is shown."""
    admin = shop.admin
    poison = admin.query_by_key("orders", "order-4711")[-1]
    paid = admin.query_by_key("payments", "order-4012")[0]
    return {
        "overview": "",
        "topics": "topics",
        "topic": "topics/orders",
        "groups": "groups",
        "group": "groups/analytics",
        "dead-letters": "groups/billing/dead-letters",
        "message": f"messages/{poison.message_id}",
        "message-msgpack": f"messages/{paid.message_id}",
        "messages": "messages?topic=orders&key=order-4012",
        "delayed": "delayed",
        "transactions": "transactions",
        "error": "topics/order",
        "sign-in": "sign-in",
    }


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("docs/drawings/console"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        services = Services(Path(directory))
        services.start()
        with Connection([services.name_server.address]) as mq:
            shop, clock = Shop(mq), AcceleratedClock()
            sampler = live_an_hour(shop, clock)
            lent = shop.lend_thumbnails()
            shop.plan_reminders()
            shop.leave_transactions_open()
            asyncio.run(sampler.sample())
            token_file = Path(directory, "token")
            settings = ConsoleSettings(token_file=token_file)
            with shop.shipping(), shop.billing(), trading(shop), running_console(mq, settings, sampler) as url:
                time.sleep(16)  # some samples at the real pace
                _shoot_all(url, token_file.read_text().strip(), folder, shop)
            lent.close()
        services.stop()


def _shoot_all(url: str, token: str, folder: Path, shop: Shop) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for kind, width in WIDTHS.items():
            for scheme in ("light", "dark") if kind == "wide" else ("light",):
                page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
                page.goto(url + "sign-in")
                page.get_by_label("Token").fill(token)
                page.get_by_role("button", name="Allow writes").click()
                page.wait_for_url(url)
                for name, path in paths(shop).items():
                    if scheme == "dark" and name not in ("overview", "group"):
                        continue
                    page.goto(url + path)
                    page.locator("[hx-trigger=load]").wait_for(state="detached")  # why a group moves or not
                    shoot(page, folder, f"{name}-{kind}" if scheme == "light" else f"{name}-dark")
                if scheme == "light":
                    page.goto(url + "groups/billing/dead-letters")
                    page.locator('input[name="ids"]').first.check()
                    page.get_by_role("button", name="Redrive, dry run").click()
                    shoot(page, folder, f"redrive-{kind}")
        browser.close()


if __name__ == "__main__":
    main()
