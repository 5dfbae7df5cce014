"""The report in headless Chromium: no complaint, no request, no text cut at any width, and it prints."""

import re
import shutil
import time

import pytest

from gpustack_mc import load_scenario, report, simulate, summarizing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, whose driver steers the browser")
# Without its own network calls the browser is quiet also where there is no network.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
WIDTHS = (360, 768, 1600)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(llama, tmp_path_factory):
    """A usual report, one without spread, one with phases, and two with sliders."""
    folder = tmp_path_factory.mktemp("pages")
    fixed, phases = simulate("worked-7b", samples=256), simulate("deepseek-v3", samples=512)
    trees = {"usual": llama[0], "fixed": fixed, "phases": phases}
    for name, tree in trees.items():
        report.write(tree, folder / f"{name}.html")
    report.write(llama[0], folder / "sliders.html", with_sliders=True)
    report.write(fixed, folder / "sliders-fixed.html", with_sliders=True)
    return folder


def opened(browser, path, **options):
    page = browser.new_context(**options).new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    return page, said, asked


@pytest.mark.parametrize("name", ["usual", "fixed", "phases", "sliders", "sliders-fixed"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_quiet_alone_and_whole(browser, pages, name, width, scheme):
    path = pages / f"{name}.html"
    page, said, asked = opened(browser, path, viewport={"width": width, "height": 900}, color_scheme=scheme)
    # Closed parts must fit as well.
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    cut = page.evaluate(
        """[...document.querySelectorAll('h1, h2, p, td, th, li, dd, summary')].filter(
            e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1 && !e.closest('thead, .scroll')
        ).map(e => e.textContent.trim().slice(0, 60))"""
    )
    assert said == [] and [url for url in asked if url != path.as_uri()] == []
    assert room[0] <= room[1]
    assert cut == []
    page.context.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_interval_plot_is_whole(browser, pages, width):
    """One of two renderings is shown, no wider than its place, with text of at least 9 CSS pixels."""
    page, _, _ = opened(browser, pages / "usual.html", viewport={"width": width, "height": 900})
    shown = page.evaluate(
        """[...document.querySelectorAll('#answer figure svg')].map(e => [e.getBoundingClientRect(), e])
            .filter(([box]) => box.width > 0)
            .map(([box, e]) => [box.left, box.right, box.width / e.viewBox.baseVal.width])"""
    )
    assert len(shown) == 1
    left, right, pixels_per_point = shown[0]
    assert 0 <= left and right <= width
    # Labels are of 8 points.
    assert width > 700 or 8 * pixels_per_point >= 9
    page.context.close()


def test_dark_and_light_differ_and_have_contrast(browser, pages):
    """Text stands out from its ground by the 4.5 to 1 of WCAG 2.2, criterion 1.4.3."""
    grounds = set()
    for scheme in ("light", "dark"):
        page, _, _ = opened(browser, pages / "usual.html", color_scheme=scheme)
        colours = page.evaluate(
            """['--card', '--page', '--ink', '--muted', '--blue', '--mark-ink'].map(
                name => getComputedStyle(document.documentElement).getPropertyValue(name).trim())"""
        )
        card, ground, *texts = map(luminance, colours)
        grounds.add(colours[0])
        for text in texts:
            for below in (card, ground):
                assert (max(text, below) + 0.05) / (min(text, below) + 0.05) >= 4.5, (scheme, colours)
        page.context.close()
    assert len(grounds) == 2


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_it_prints_with_everything_open(browser, pages, tmp_path):
    page, _, _ = opened(browser, pages / "usual.html")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    printed = tmp_path / "report.pdf"
    page.pdf(path=printed, format="A4")
    assert printed.stat().st_size > 50_000
    page.context.close()


def test_keyboard_reaches_the_answer(browser, pages):
    page, _, _ = opened(browser, pages / "usual.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#answer"
    page.context.close()


@pytest.mark.parametrize("width", [360, 1600])
def test_a_slider_moves_the_answer(browser, pages, llama, width):
    """By keyboard alone; what is shown is what Python computes with the value that the page shows."""
    page, said, asked = opened(browser, pages / "sliders.html", viewport={"width": width, "height": 900})
    rows = page.locator("#try tbody tr")
    first = page.locator("#try input[type=range]").first
    before = [row.inner_text() for row in rows.all()]
    assert page.locator("#try-reset").is_disabled()
    first.focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    # The policy of the page forbids what `wait_for_function` does. The spoken words follow when the slider rests.
    page.wait_for_timeout(1000)
    key = first.get_attribute("aria-label").partition(",")[0]
    line = page.locator("#try-scenario").text_content()
    value = float(re.fullmatch(rf"inputs:\n  {key}: ([\d.e+-]+)", line)[1])
    again = summarizing.summarise(simulate(load_scenario("llama-3-70b", [f"{key}={value}"]), samples=4096))
    cells = summarizing.headline_table(again, "either")
    changed = 0
    for row, was, (middle, _, most) in zip(rows.all(), before, cells.values(), strict=True):
        # Digits of the command are limited by its Monte Carlo error, which the page does not know.
        shown = [row.locator(".now").inner_text(), *row.locator(".ends").inner_text().split(" – ")]
        for mine, wanted in zip(shown, [middle, *most.split(" – ")], strict=True):
            assert amount(mine) == pytest.approx(amount(wanted), rel=0.06)
        changed += row.inner_text() != was
    assert changed >= 3
    assert page.locator("#try-spoken").text_content() == page.locator("#try-said").text_content()
    page.locator("#try-reset").click()
    playwright.expect(page.locator("#try-reset")).to_be_disabled()
    assert [row.inner_text() for row in rows.all()] == before
    assert said == [] and [url for url in asked if url != (pages / "sliders.html").as_uri()] == []
    page.context.close()


def amount(text: str) -> float:
    number, suffix = re.search(r"([\d,.]+) ?([kMBGT]?)", text.replace("$", "")).groups()
    return float(number.replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}[suffix]


def test_every_control_has_a_name_and_says_its_value(browser, pages):
    page, _, _ = opened(browser, pages / "sliders.html")
    named = page.evaluate(
        """[...document.querySelectorAll('#try input')].map(
            e => [e.getAttribute('aria-label'), e.getAttribute('aria-valuetext'), e.labels.length])"""
    )
    assert len(named) > 20 and len({label for label, _, _ in named}) == len(named)
    assert all(label and value and labels == 1 for label, value, labels in named)
    page.context.close()


def test_without_scripts_the_page_says_so(browser, pages):
    page, said, _ = opened(browser, pages / "sliders.html", java_script_enabled=False)
    assert page.locator("#try noscript").count() == 1
    assert not page.locator("#try-body").is_visible() and said == []
    page.context.close()


def test_it_is_there_soon(browser, pages):
    started = time.monotonic()
    page, _, _ = opened(browser, pages / "usual.html")
    page.wait_for_selector("#reproduce")
    # No gate on speed: only a page that hangs would take this long.
    assert time.monotonic() - started < 30
    page.context.close()
