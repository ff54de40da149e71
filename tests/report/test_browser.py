"""The page in headless Chromium: quiet, self-contained, readable, sortable, on screen and paper."""

import base64
import re
import time

import pytest
from browser import Browser, find_browser

PATH = find_browser()
pytestmark = pytest.mark.skipif(
    PATH is None, reason="needs Chromium: apt-get install chromium (or chromium-headless-shell)"
)

COLUMN = """
[...document.querySelector("#classes table").tBodies[0].rows].map(r => r.cells[%d].dataset.v
    ?? r.cells[%d].textContent)
"""


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests."""
    with Browser(PATH) as found:
        yield found


@pytest.fixture
def page(browser, full_folder):
    """The report, freshly opened on a desktop screen."""
    browser.errors.clear()
    browser.requests.clear()
    browser.screen(1200, 900)
    browser.ask("Emulation.setEmulatedMedia", media="", features=[])
    browser.open(f"file://{full_folder}/report.html")
    return browser


def test_it_is_quiet_and_asks_for_nothing(page, full_folder):
    assert page.errors == []
    asked = [url for url in page.requests if not url.startswith("data:")]
    assert asked == [f"file://{full_folder}/report.html"]


def test_the_page_forbids_itself_the_network(page):
    """The policy in the page, not only its content: a picture from elsewhere is refused."""
    page.run("""
        new Promise(done => {
          const picture = new Image();
          picture.onload = picture.onerror = done;
          picture.src = "https://example.invalid/x.png";
        }).then(() => 0)
    """)
    assert any("Content Security Policy" in text for text in page.errors)


def test_every_picture_is_visible(page):
    pictures = page.run("""
        [...document.images].map(i => [i.alt, i.complete && i.naturalWidth, i.clientWidth])
    """)
    assert len(pictures) > 40
    assert [alt for alt, natural, shown in pictures if not (alt and natural and shown > 20)] == []


def test_all_parts_are_there_in_order(page):
    headings = page.run("[...document.querySelectorAll('h2')].map(h => h.textContent)")
    assert headings == [
        "Summary",
        "Metrics",
        "Calibration",
        "Selective prediction",
        "Inputs of another kind",
        "Changed inputs",
        "Networks side by side",
        "How many passes are enough",
        "Look at these first",
        "Class by class",
        "Cost",
        "Settings",
        "Environment",
        "Definitions",
    ]
    says = page.run("[...document.querySelectorAll('#summary h3')].map(h => h.textContent)")
    assert says == ["What the network knows", "Where it does not", "What to do"]
    links = page.run("[...document.querySelectorAll('nav a')].map(a => !!document.querySelector("
                     "a.getAttribute('href')))")  # fmt: skip
    assert len(links) == len(headings)
    assert all(links)


def test_tables_sort_by_number_and_by_name(page):
    press = "document.querySelectorAll('#classes th button')[%d].click()"
    page.run(press % 6)
    entropy = [float(v) for v in page.run(COLUMN % (6, 6))]
    assert entropy == sorted(entropy)
    page.run(press % 6)
    assert [float(v) for v in page.run(COLUMN % (6, 6))] == sorted(entropy, reverse=True)
    page.run(press % 0)
    assert page.run(COLUMN % (0, 0)) == list("abcd")
    sorts = page.run("[...document.querySelectorAll('#classes th')].map(h => h.ariaSort)")
    assert sorts == ["ascending", *[None] * 8]


def test_missing_values_come_last(page):
    page.run("""
        const cell = document.querySelector("#classes table").tBodies[0].rows[0].cells[3];
        cell.dataset.v = "";
        document.querySelectorAll("#classes th button")[3].click()
    """)
    column = page.run(COLUMN % (3, 3))
    assert column[-1] == ""
    assert [float(v) for v in column[:-1]] == sorted(float(v) for v in column[:-1])


def test_a_keyboard_reaches_the_links_and_sorts(page):
    page.key("Tab", 9)
    assert page.run("document.activeElement.textContent") == "Skip to the summary"
    page.run("document.querySelectorAll('#classes th button')[1].focus()")
    page.key("Tab", 9)
    assert page.run("document.activeElement.textContent") == "Predicted"
    page.key("Enter", 13)
    column = [int(v) for v in page.run(COLUMN % (2, 2))]
    assert column == sorted(column)
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_phone_needs_no_sideways_scrolling(page):
    page.screen(390, 844, phone=True)
    assert page.run("document.documentElement.scrollWidth") <= 390
    wide = page.run("""
        [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, pre")
            && e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 80))
    """)
    assert wide == []
    narrow = page.run("""
        [...document.querySelectorAll("caption, td, p, li, figcaption")].filter(e =>
            e.textContent.trim().length > 12 && e.clientWidth && e.clientWidth < 60)
            .map(e => e.outerHTML.slice(0, 80))
    """)
    assert narrow == []


def luminance(colour):
    """0 … 255 of "rgb(r, g, b)"."""
    return sum(int(v) for v in re.findall(r"\d+", colour)[:3]) / 3


def test_light_and_dark_screens_have_their_colours(page):
    colours = """[getComputedStyle(document.body).color,
                  getComputedStyle(document.body).backgroundColor]"""
    pictures = """
        [...document.querySelectorAll(".charts picture")].map(p => {
          const shown = p.querySelector("img"), dark = p.querySelector("source").srcset;
          return shown.currentSrc === dark ? "dark" : "light";
        })
    """
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.ask("Emulation.setEmulatedMedia", features=features)
        ink, paper = map(luminance, page.run(colours))
        assert (ink < paper) == (scheme == "light")
        assert abs(ink - paper) > 128
        end = time.monotonic() + 20
        while page.run(pictures) != 9 * [scheme]:  # pictures change after the page has
            assert time.monotonic() < end, page.run(pictures)
            time.sleep(0.05)


def test_it_prints(page):
    pdf = base64.b64decode(page.ask("Page.printToPDF", printBackground=False)["data"])
    assert pdf.startswith(b"%PDF")
    assert page.run("document.querySelector('details').open")
    page.ask("Emulation.setEmulatedMedia", media="print")
    assert page.run("getComputedStyle(document.querySelector('nav')).display") == "none"
