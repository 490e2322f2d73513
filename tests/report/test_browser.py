"""The pages in a real browser: nothing is loaded, cut or overlapping, and everything works by pointer and keyboard."""

import base64
import re
import socket

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from bayesbits.recipes.run_state import RunState, recorded
from bayesbits.report import write_comparison_page, write_report
from tests.report.browser import CUT, OVERLAPPING, browser, open_page
from tests.report.made_runs import ENCODER, LONG, network, write_made_run
from tests.report.runs import HOSTILE, write_run, write_statistics, write_verification

pytestmark = pytest.mark.check
NETWORKS = ("lenet5", "resnet50", LONG)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """For each network the page and the plan; for "comparison" a page about two runs."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for name in (*NETWORKS, ENCODER):
        plan = write_made_run(folder / name, network(name))
        found[name] = write_report(folder / name), plan
    write_made_run(folder / "other", network("lenet5"), seed=1)
    page = write_comparison_page([folder / "lenet5", folder / "other"], folder / "comparison.html")
    return {**found, "comparison": (page, None)}


def texts(driver, selector):
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent.trim())"
    return driver.execute_script(script, selector)


def bring_into_view(driver, element):
    """Scroll to an element, and wait until the page has been told of it: scrolling hides what was pointed at."""
    driver.execute_async_script(
        "arguments[0].scrollIntoView({block: 'center'});"
        "const done = arguments[1]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50)))",
        element,
    )


def tip(driver):
    found = driver.find_element(By.ID, "tip")
    return found.text if found.is_displayed() else None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", [*NETWORKS, ENCODER, "comparison"])
def test_nothing_is_loaded_cut_or_overlapping(driver, pages, name, width, scheme):
    driver.get_log("browser")
    open_page(driver, pages[name][0], width, scheme)
    assert driver.execute_script(CUT) == []
    assert driver.execute_script(OVERLAPPING) == []
    driver.execute_script("for (const one of [...document.querySelectorAll('details')].slice(0, 3)) one.open = true")
    assert driver.execute_script(CUT) == []
    assert driver.execute_script(OVERLAPPING) == []
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert driver.get_log("browser") == []
    colors = "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
    ink, paper = (sum(map(int, one[4:-1].split(","))) for one in driver.execute_script(colors))
    assert (ink < paper) == (scheme == "light")


def test_columns_of_the_picture_line_up_where_a_layer_emits_codes(driver, pages):
    page, plan = pages[ENCODER]
    assert any(tensor.endswith(".output") for tensor in plan.bits)
    open_page(driver, page, 1400)
    for column in ("weight", "input", "channels", "share"):
        places = "return [...document.querySelectorAll(arguments[0])].map((one) => one.getBoundingClientRect().right)"
        found = driver.execute_script(places, f".picture details.layer .{column}")
        assert len(found) == 6
        assert max(found) - min(found) < 1, column


@pytest.mark.parametrize("name", [*NETWORKS, ENCODER])
def test_every_layer_and_tensor_of_the_plan_is_on_the_page(driver, pages, name):
    page, plan = pages[name]
    open_page(driver, page)
    endings = (".weight", ".left", ".right")
    layers = {tensor.rpartition(".")[0] for tensor in plan.bits if tensor.endswith(endings)}  # products and tables, too
    assert layers <= set(texts(driver, "#layer-table tbody th"))
    assert layers <= {*texts(driver, ".picture .full"), *texts(driver, ".picture .name code")}
    assert set(plan.bits) <= set(texts(driver, ".tensor figcaption code"))
    short = texts(driver, ".picture .name code")
    assert len(short) == len(set(short))
    assert page.stat().st_size < 5_000_000


def test_the_table_sorts_by_pointer_and_keyboard(driver, pages):
    open_page(driver, pages["resnet50"][0])
    column = "#layer-table tbody td:nth-of-type(2)"
    before = texts(driver, column)
    heads = driver.find_elements(By.CSS_SELECTOR, "#layer-table thead button")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", heads[2])
    heads[2].click()
    assert texts(driver, column) == sorted(before, key=int)
    heads[2].send_keys(Keys.ENTER)
    assert texts(driver, column) == sorted(before, key=int, reverse=True)
    assert heads[2].find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    heads[0].send_keys(Keys.SPACE)
    assert texts(driver, column) == before
    shares = [float(one.rstrip("%")) for one in texts(driver, "#layer-table tbody td:nth-of-type(7)")]
    heads[7].click()
    assert [float(one.rstrip("%")) for one in texts(driver, "#layer-table tbody td:nth-of-type(7)")] == sorted(shares)


def test_the_table_filters(driver, pages):
    open_page(driver, pages["resnet50"][0])
    field = driver.find_element(By.CSS_SELECTOR, "#layers input")
    field.send_keys("layer2.0")
    shown = [row for row in driver.find_elements(By.CSS_SELECTOR, "#layer-table tbody tr") if row.is_displayed()]
    assert [row.find_element(By.TAG_NAME, "code").text for row in shown] == [
        "layer2.0.downsample.0", "layer2.0.conv1", "layer2.0.conv2", "layer2.0.conv3"
    ]  # fmt: skip
    assert driver.find_element(By.CSS_SELECTOR, "#layers output").text == "4 of 54 rows"


def test_charts_say_their_values_by_pointer_and_keyboard(driver, pages):
    open_page(driver, pages["lenet5"][0])
    chart = driver.find_element(By.CSS_SELECTOR, "#run svg.chart")
    bring_into_view(driver, chart)
    ActionChains(driver).move_to_element(chart).perform()
    assert tip(driver).startswith("epochs")
    assert "task loss" in tip(driver)
    ActionChains(driver).move_to_element(driver.find_element(By.CSS_SELECTOR, "#run h2")).perform()
    assert tip(driver) is None
    driver.execute_script("arguments[0].focus({preventScroll: true})", chart)
    chart.send_keys(Keys.ARROW_RIGHT)
    first = tip(driver)
    chart.send_keys(Keys.ARROW_RIGHT)
    assert first.splitlines()[0] == "epochs 0.5"
    assert tip(driver).splitlines()[0] == "epochs 1"
    chart.send_keys(Keys.ESCAPE)
    assert tip(driver) is None


def test_charts_zoom_by_dragging_and_show_all_again(driver, pages):
    open_page(driver, pages["lenet5"][0])
    chart = driver.find_element(By.CSS_SELECTOR, "#run svg.chart")
    line = chart.find_element(By.TAG_NAME, "polyline")
    before, marks = line.get_attribute("points"), texts(driver, "#run svg.chart:first-of-type .marks")[0]
    bring_into_view(driver, chart)
    drag = ActionChains(driver).move_to_element_with_offset(chart, -60, 0).click_and_hold()
    drag.move_by_offset(120, 0).release().perform()
    assert line.get_attribute("points") != before
    assert texts(driver, "#run svg.chart:first-of-type .marks")[0] != marks
    ActionChains(driver).double_click(chart).perform()
    assert line.get_attribute("points") == before
    assert texts(driver, "#run svg.chart:first-of-type .marks")[0] == marks


def test_rows_open_by_keyboard_and_bars_say_what_they_are(driver, pages):
    open_page(driver, pages["resnet50"][0])
    summary = driver.find_element(By.CSS_SELECTOR, "details.layer > summary")
    inside = driver.find_element(By.CSS_SELECTOR, "details.layer .inside")
    assert not inside.is_displayed()
    driver.execute_script("arguments[0].focus()", summary)
    summary.send_keys(Keys.ENTER)
    assert inside.is_displayed()
    bar = driver.find_element(By.CSS_SELECTOR, ".skyline g .weight")
    bring_into_view(driver, bar)
    ActionChains(driver).move_to_element(bar).perform()
    assert tip(driver).splitlines()[0] == "conv1"


def test_all_rows_open_by_a_button(driver, pages):
    open_page(driver, pages["lenet5"][0])
    button = driver.find_element(By.ID, "open-rows")
    open_rows = "return document.querySelectorAll('details[open]').length"
    for words, number in (("Close all rows", 4), ("Open all rows", 0)):
        button.send_keys(Keys.ENTER)
        assert button.text == words
        assert driver.execute_script(open_rows) == number


def test_closed_rows_are_open_in_print_and_closed_afterwards(driver, pages):
    open_page(driver, pages["lenet5"][0])
    driver.find_element(By.CSS_SELECTOR, "details.layer > summary").click()
    driver.execute_script(
        "window.printed = []; const number = (which) => document.querySelectorAll(which).length;"
        "addEventListener('beforeprint', () => printed.push(number('details:not([open])'), number('details')))"
    )
    pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    closed, rows = driver.execute_script("return printed")
    assert (closed, rows) == (0, 5)  # four layers and the recipe
    assert len(driver.find_elements(By.CSS_SELECTOR, "details[open]")) == 1
    bare = driver.execute_script("for (const one of document.querySelectorAll('details')) one.remove(); return true")
    without = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert bare
    assert pages_of(pdf) > pages_of(without)


@pytest.mark.parametrize("name", [*NETWORKS, "comparison"])
def test_nothing_is_cut_on_paper(driver, pages, name):
    open_page(driver, pages[name][0], 718)  # A4 without its margins
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    try:
        assert driver.execute_script(CUT) == []
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("state", ["unfinished", "failed", "killed", "unequal", "older", "incomplete", "damaged"])
def test_runs_that_went_wrong_have_a_page_that_says_so(driver, tmp_path, state, width):
    write_made_run(tmp_path, network("lenet5"))
    said = {"unfinished": "This run is not finished.", "failed": "RuntimeError: no <b>labels</b>",
            "killed": "This run was killed", "unequal": "The integer network is not equal", "older": "Not measured",
            "incomplete": "This page is not complete.", "damaged": "A file of this run cannot be used."}  # fmt: skip
    begun = ("result.json", "plan.json", "statistics.json", "bench.json")
    missing = {"unfinished": begun, "failed": begun, "killed": begun, "older": ("statistics.json",),
               "incomplete": ("recipe.toml", "topology.json")}  # fmt: skip
    for name in missing.get(state, ()):
        (tmp_path / name).unlink()
    command = f"bayesbits search {tmp_path}/recipe.toml --resume"
    if state == "failed":
        with pytest.raises(RuntimeError), recorded(tmp_path, command):
            raise RuntimeError("no <b>labels</b>\n" + "a_long_name_of_a_layer." * 20)
    if state == "killed":
        RunState(1, socket.gethostname(), "long ago", command, "2026-11-17 09:12:44 UTC").save(tmp_path / "state.json")
    if state == "unequal":
        layers = ("features.0", "features.3", "classifier.1", "classifier.3")
        write_verification(tmp_path, layers, failure="classifier.1.input: 6 codes differ", wrong=6)
    if state == "damaged":
        (tmp_path / "plan.json").write_text("{")
    driver.get_log("browser")
    open_page(driver, write_report(tmp_path), width)
    assert any(said[state] in text for text in texts(driver, ".alert, #errors p"))
    driver.execute_script("for (const one of document.querySelectorAll('.alert details')) one.open = true")
    assert driver.execute_script(CUT) == []
    assert driver.execute_script(OVERLAPPING) == []
    assert driver.get_log("browser") == []


def test_two_plans_are_chosen_and_compared(driver, pages):
    open_page(driver, pages["comparison"][0])
    visible = [
        cell.text for cell in driver.find_elements(By.CSS_SELECTOR, "#plan-table thead th") if cell.is_displayed()
    ]
    assert visible == ["layer", "lenet5", "other"]
    differing = len(driver.find_elements(By.CSS_SELECTOR, "#plan-table tr.differs"))
    assert differing > 0
    driver.find_element(By.CSS_SELECTOR, ".plans input").click()
    shown = [row for row in driver.find_elements(By.CSS_SELECTOR, "#plan-table tbody tr") if row.is_displayed()]
    assert len(shown) == differing
    Select(driver.find_elements(By.TAG_NAME, "select")[1]).select_by_visible_text("lenet5")
    assert texts(driver, ".plans output") == ["0 of 4 layers differ"]


def test_markup_in_names_is_shown_and_not_run(driver, tmp_path):
    write_run(tmp_path, first=HOSTILE, reason=HOSTILE)
    write_statistics(tmp_path, first=HOSTILE)
    driver.get_log("browser")
    open_page(driver, write_report(tmp_path))
    assert "<script>alert('x')</script>" in driver.find_element(By.ID, "layer-table").text
    assert driver.execute_script("return document.scripts.length") == 1
    assert driver.get_log("browser") == []
