"""Latency of the demo in a real browser: `python bench/latency.py` (needs Chromium, Playwright).

Draws strokes on the page of `airscene demo` at the speed of a hand. The page measures the time from
each pointer event to the frame that shows its windows.
"""

import math
import re
import shutil
import statistics
import subprocess
import sys
import time

from playwright.sync_api import sync_playwright

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "airscene.cli", "demo", "--no-browser", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    found = None
    while not found:
        found = re.search(r"http://\S+", server.stdout.readline())
    try:
        for _ in range(3):
            report(measure(found[0]))
    finally:
        server.terminate()


def measure(address: str) -> list[float]:
    """Milliseconds until each answer, for two strokes."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1100, "height": 1000})
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        box = page.locator("#picture canvas").bounding_box()
        assert box is not None
        for at in (0.3, 0.7):
            for i in range(60):
                turn = i * math.pi / 20
                x, y = at + 0.1 * math.sin(turn), 0.5 - 0.17 * math.cos(turn)
                page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
                if i == 0:
                    page.mouse.down()
                time.sleep(0.016)
            page.mouse.up()
        page.wait_for_timeout(300)
        times = page.evaluate("airscene.latencies")
        browser.close()
    return times


def report(times: list[float]) -> None:
    low, high = statistics.median(times), statistics.quantiles(times, n=10)[-1]
    print(f"{len(times)} answers: median {low:.1f} ms, 90% within {high:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
