"""A browser without a window: Debian's chromium, driven by selenium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def browser(folder: Path) -> Iterator[Any]:
    """The driver of a browser with its profile in a folder. Without one tests fail in CI and are left out elsewhere."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    control = shutil.which("chromedriver")
    if program is None or control is None:
        reason = "there is no chromium with its chromedriver; on Debian: apt-get install chromium chromium-driver"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*_FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(control))
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver: Any, path: Path, width: int = 1400, scheme: str = "light") -> None:
    """Open a page in a window of this width, light or dark."""
    wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}  # scrolling is done at once
    media = {"features": [{"name": name, "value": value} for name, value in wanted.items()]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    address = path.resolve().as_uri()
    driver.get(address)
    loaded = "return document.readyState === 'complete' && location.href === arguments[0]"
    WebDriverWait(driver, 30).until(lambda _: driver.execute_script(loaded, address))


# What is cut: text that reaches beyond its image, or beyond the window where no part of the page around it can be
# scrolled sideways.
CUT = """
const scrolls = (node) => {
  for (; node && node !== document.body; node = node.parentElement) {
    const style = getComputedStyle(node);
    if (/auto|scroll/.test(style.overflowX)) return true;
  }
  return false;
};
const found = [];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!own || !node.checkVisibility() || node.closest(".skip")) continue;
  const box = node.getBoundingClientRect();
  const image = node.closest("svg.chart"), frame = image && image.getBoundingClientRect();
  if (image && (box.left < frame.left - 1 || box.right > frame.right + 1)) found.push(node.textContent);
  const beyond = box.width && (box.right > innerWidth + 1 || box.left < -1);
  if (beyond && !scrolls(node)) found.push(node.textContent.trim().slice(0, 60));
}
if (document.documentElement.scrollWidth > innerWidth + 1) found.push("the whole page");
return found;
"""

# What overlaps: texts of one image, or of one row of the picture or of a table, whose boxes share more than a pixel.
OVERLAPPING = """
const found = [];
const parts = "svg.chart, svg.histogram, .row, .striprow, .card, figcaption, .worst li, tr";
for (const part of document.querySelectorAll(parts)) {
  if (!part.checkVisibility()) continue;
  const texts = [...part.querySelectorAll("text, code, small, b, .share, .legend .key, dt, dd, td, th button")].filter(
    (node) => node.checkVisibility() && node.textContent.trim() && getComputedStyle(node).visibility !== "hidden"
  );
  const boxes = texts.map((node) => node.getBoundingClientRect());
  for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
    if (texts[i].contains(texts[j]) || texts[j].contains(texts[i])) continue;
    const a = boxes[i], b = boxes[j];
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    const said = [texts[i], texts[j]].map((node) => node.textContent.trim().slice(0, 40));
    if (x > 1 && y > 1) found.push(said.join(" | "));
  }
}
return found;
"""
