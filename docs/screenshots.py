"""`python -m docs.screenshots`: the pictures of the report in docs/images, taken in a browser from pages of real runs.

The runs have to be there; the commands that make them are beside the pictures, in docs/howto/report.md. A picture whose
run is not there stays as it is. It needs chromium with its driver, and the extra `test`.
"""

import base64
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver

from bayesbits.report import write_comparison_page, write_report

IMAGES = Path(__file__).parent / "images"
MARGIN = 16  # pixels around the part that is shown


@dataclass(frozen=True)
class Picture:
    """A part of a page: from the top of `first` to the bottom of `last`, which are CSS selectors."""

    name: str
    run: str
    """The folder of the run, or of a sweep."""
    first: str
    last: str
    width: int = 1040
    scheme: str = "light"
    opened: str = ""
    """The rows that are opened."""


PICTURES = (
    Picture("report", "runs/demo", ".eyebrow", "#network"),
    Picture("report_layer", "runs/demo", "details.layer:nth-of-type(2)", "details.layer:nth-of-type(2)",
            opened="details.layer:nth-of-type(2)"),
    Picture("report_curves", "runs/demo", "#run h2", "#run .gates"),
    Picture("report_errors", "runs/demo", "#errors h2", "#errors .panels"),
    Picture("report_front", "runs/posttrain", "#front h2", "#front .panels", width=1240),
    Picture("report_comparison", "runs/mus", ".eyebrow", "#plans", width=1240),
)  # fmt: skip


def take(driver: Any, picture: Picture, page: Path) -> bytes:
    """The picture as PNG."""
    features = [{"name": "prefers-color-scheme", "value": picture.scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": picture.width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.resolve().as_uri())
    script = """
        const [first, last, opened] = arguments;
        for (const row of opened ? document.querySelectorAll(opened) : []) row.open = true;
        return [document.querySelector(first).getBoundingClientRect().top + scrollY,
                document.querySelector(last).getBoundingClientRect().bottom + scrollY];
    """
    top, bottom = driver.execute_script(script, picture.first, picture.last, picture.opened)
    top = max(0, top - MARGIN)
    clip = {"x": 0, "y": top, "width": picture.width, "height": bottom + MARGIN - top, "scale": 1}
    options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    return small_png(base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def write_page(run: Path, path: Path) -> Path | None:
    """The page about a run, or about the runs of a sweep; None where they are not there."""
    if (run / "sweep.json").is_file():
        names = [entry["name"] for entry in json.loads((run / "sweep.json").read_text())["runs"]]
        return write_comparison_page([run / name for name in names], path)
    return write_report(run, path) if (run / "result.json").is_file() else None


def small_png(image: bytes) -> bytes:
    """The image with a palette of 128 colors: a third of the bytes, and pages have few colors."""
    small = io.BytesIO()
    Image.open(io.BytesIO(image)).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


@contextmanager
def _browser() -> Iterator[Any]:
    program, control = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or control is None:
        sys.exit("there is no chromium with its chromedriver; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(control))
    try:
        yield driver
    finally:
        driver.quit()


def main() -> None:
    """Take every picture whose run is there, and say which are not."""
    with _browser() as driver, tempfile.TemporaryDirectory() as folder:
        for picture in PICTURES:
            page = write_page(Path(picture.run), Path(folder) / "page.html")
            if page is None:
                print(f"{picture.name}: there is no finished run in {picture.run}")
                continue
            path = IMAGES / f"{picture.name}.png"
            path.write_bytes(take(driver, picture, page))
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
