"""The page of ``refsim report html`` in Debian's chromium: filter, sort, drill down, timeline, light and dark.

``nox -s web`` runs this. Without a browser it is skipped, which the summary says and counts; where ``CI`` is set that
is an error.
"""

from __future__ import annotations

import os
import shutil

import pytest

from parity.report.page import ring, write
from tests.parity.report import page_records

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; `nox -s web` has it")
FIGURE = {"model": "m", "size": "1024", "mesh": "n300", "parallel": "tp2", "arch": "blackhole", "measured": 12.0}
FIGURE |= {"predicted": 10.0, "low": 9.0, "high": 11.0, "source": "somebody", "inside": False}
TRACES = {
    "failed": {"command": "refsim parity why x --trace out/x.trace.json"},
    "passed": {"file": "../out/a b.trace.json"},
}


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        missing = "no chromium on the search path; on Debian `apt-get install --no-install-recommends chromium` has it"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # chromium refuses its sandbox to root
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = page_records.write(tmp_path_factory.mktemp("results"))
    history = page_records.write_history(tmp_path_factory.mktemp("history"))
    data = write.collect([folder], history=history, only_records=True, progress=print)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "SHAPE", (1, 2, 128, 32))
        data |= {"figures": [FIGURE], "rings": ring.runs()}
    for row in data["records"]["parity"]:
        row["trace"] = TRACES.get(row["verdict"])
    file = tmp_path_factory.mktemp("page") / "index.html"
    file.write_text(write.page(data), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser, url):
    """The page, opened; a test fails if a program of the page fails or if anything beside the file is asked for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: None if request.url == url else problems.append(request.url))
    page.goto(url)
    yield page
    context.close()
    assert problems == []


def cases(page) -> list[str]:
    return [text.split("-")[1] for text in page.locator("#parity button.open").all_inner_texts()]


def test_filters_and_words_choose_cases(page):
    assert len(cases(page)) == 3
    page.get_by_label("mesh", exact=True).first.select_option("t3k")
    assert cases(page) == ["t3k"] and page.locator("#parity output").inner_text() == "1 of 3 cases"
    page.get_by_label("mesh", exact=True).first.select_option("")
    page.locator("#parity").get_by_label("verdict").select_option("failed")
    assert cases(page) == ["bh_qb_1x4"]
    page.locator("#parity").get_by_label("verdict").select_option("")
    page.get_by_label("Search cases").fill("9 GB n300")
    assert cases(page) == ["n300"]
    page.get_by_label("Search cases").fill("no such word")
    assert cases(page) == [] and page.locator("#parity output").inner_text() == "0 of 3 cases"


def test_a_column_sorts_both_ways(page):
    head = page.locator("#parity th", has_text="mesh")
    meshes = page.locator("#parity tr.opens td:nth-child(3)")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending" and meshes.all_inner_texts() == ["bh-qb-1x4", "n300", "t3k"]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending" and meshes.all_inner_texts() == ["t3k", "n300", "bh-qb-1x4"]


def test_shares_of_bounds_sort_as_numbers_with_what_is_beyond_first(page):
    head = page.locator("#parity th", has_text="nearest bound")
    head.get_by_role("button").click()
    assert page.locator("#parity tr.opens td:nth-child(7)").all_inner_texts()[0].startswith("rel_rmse beyond")


def test_a_case_opens_to_its_metrics_its_explanation_and_its_map(page):
    page.locator("#parity button.open", has_text="bh_qb_1x4").click()
    detail = page.locator("#parity tr.detail")
    assert page_records.HOSTILE in detail.locator(".reason").inner_text()
    assert detail.locator(".place").inner_text() == page_records.EXPLANATION["place"]["text"]
    assert detail.locator("li").all_inner_texts() == ["one-row: One row is zero. 90 %"]
    assert detail.locator("svg.map rect").count() == 4 and detail.locator("svg.map .nan").count() == 1
    assert page_records.EXPLANATION["again"] in detail.inner_text()
    assert detail.locator(".trace code").inner_text() == TRACES["failed"]["command"]
    first = detail.locator("table.metrics tbody tr").first.locator("td").all_inner_texts()
    assert first[:2] == ["rel_rmse", "nan"] and len(first[4]) > 20
    page.locator("#parity button.open", has_text="bh_qb_1x4").click()
    assert detail.count() == 0
    page.locator("#parity button.open", has_text="t3k").click()
    assert detail.locator(".trace a").get_attribute("href") == "../out/a%20b.trace.json"


def test_text_of_records_stays_text(page):
    page.locator("#parity button.open", has_text="bh_qb_1x4").click()
    assert (
        page.evaluate("window.broken") is None and page.locator("#parity tr.detail b", has_text="quoted").count() == 0
    )


def test_faults_say_what_caught_them(page):
    assert "1 of 2" in page.locator("#cards").inner_text()
    page.locator("#faults button.open", has_text="two-heads").click()
    assert "gain: 0.4, at most 0.1" in page.locator("#faults tr.detail").inner_text()


def test_every_section_says_what_its_numbers_are(page):
    labels = {
        id: page.locator(f"#{id} h2 .label").all_inner_texts()
        for id in ("parity", "predictions", "memory", "trends", "ring")
    }
    assert labels == {
        "parity": ["measured"],
        "predictions": ["predicted", "published"],
        "memory": ["measured"],
        "trends": ["measured", "predicted"],
        "ring": ["measured"],
    }
    heads = page.locator("#predictions table").first.locator("th").all_inner_texts()
    assert {"published s", "predicted s"} <= set(heads)


def test_a_bar_of_the_timeline_says_buffer_step_and_bytes(page):
    right, wrong = (page.locator("svg.timeline").nth(i) for i in (0, 1))
    hint = page.locator(".hint").first
    bar = right.locator("g.bar-of", has=page.locator("title", has_text="receives V from rank 0")).first
    bar.dispatch_event("pointerenter")  # on a busy machine another bar may lie over its middle
    text = hint.inner_text()
    assert text.startswith("rank 1, step 1: receives V") and "bytes, into ring.v[1] (buffer B)" in text
    assert bar.locator("title").text_content() == text
    assert right.locator("g.hazard").count() == 0 and wrong.locator("g.hazard").count() > 0
    assert right.locator("rect.slot-B").count() > 0 and wrong.locator("rect.slot-B").count() == 0
    assert "HAZARD: rank" in wrong.locator("g.hazard title").first.text_content()


def test_trends_show_what_became_worse_and_a_loosened_limit_as_such(page):
    shown = page.locator("#trends tr.opens")
    assert [row.split("\t")[-1] for row in shown.all_inner_texts()] == ["limit loosened", "steady", "steady"]
    page.locator("#trends").get_by_label("what").select_option("limit loosened")
    assert shown.count() == 1 and shown.locator("svg.trend path.loosened").count() == 1
    page.locator("#trends button.open").click()
    detail = page.locator("#trends tr.detail")
    (loosened,) = detail.locator("li.loosened").all_inner_texts()
    assert loosened.startswith("LIMIT LOOSENED 222222222222, ") and "limit of rel_rmse loosened" in loosened
    assert "333333333333" in detail.locator("li.failed").first.inner_text()
    chart = detail.locator("figure", has_text="rel_rmse").locator("svg.trend")
    assert chart.locator("circle").count() == 4 and chart.locator("circle.worse").count() == 1
    assert "loosened" in chart.locator("path.loosened title").text_content()
    assert chart.locator("path.bound").get_attribute("d").count("V") == 3  # a step per commit after the first


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_button(browser, url, scheme):
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(url)

    def darkness() -> bool:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) < 3 * 128

    assert darkness() is (scheme == "dark")
    page.locator("#theme").click()
    assert darkness() is (scheme == "light")
    page.locator("#theme").click()
    assert darkness() is (scheme == "dark")
    context.close()


def test_a_narrow_window_scrolls_tables_and_not_the_page(browser, url):
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True)
    page = context.new_page()
    page.goto(url)
    page.locator("#parity button.open", has_text="bh_qb_1x4").tap()
    assert page.locator("#parity tr.detail").is_visible()
    page.locator("svg.timeline g.bar-of").first.tap(force=True)
    assert page.locator(".hint").first.inner_text().startswith("rank ")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_without_data_every_section_says_its_command(browser, tmp_path):
    file = tmp_path / "index.html"
    file.write_text(write.page(write.collect([], only_records=True, progress=print)), encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    for id in ("parity", "faults", "predictions", "memory", "speed", "trends", "ring"):
        assert "refsim " in page.locator(f"#{id} .missing code").first.inner_text()
        assert page.locator(f"#{id} table").count() == 0
    page.close()
