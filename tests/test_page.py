"""The page in a real browser: it loads in silence, is readable in light and dark, on a phone, by keyboard, on paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import browser
import pytest
from report_runs import PICTURES, failing_run, ties_away

from lowbit import report
from lowbit.report import html, text

pytestmark = pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed: the page was opened in none")

CONTRAST = """
(() => {
  const parse = color => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const over = (top, under) => {
    const alpha = top[3] === undefined ? 1 : top[3];
    return [0, 1, 2].map(i => top[i] * alpha + under[i] * (1 - alpha));
  };
  const light = color => {
    const [r, g, b] = color.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const poor = new Set();
  for (const element of document.querySelectorAll("body *:not(script):not(option)")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    const style = getComputedStyle(element);
    if (!own || element.closest("svg") || !element.getClientRects().length) continue;
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const found = ratio(over(parse(style.color), ground(element)), ground(element));
    if (style.opacity !== "1" || found < (large ? 3 : 4.5))
      poor.add(`${element.tagName}.${element.className} ${found.toFixed(2)} ${style.opacity}`);
  }
  const variable = name => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(--${name})`;
    const color = parse(getComputedStyle(probe).color);
    probe.remove();
    return color;
  };
  const written = [["on-light", "shade1"], ["on-light", "shade2"], ["on-light", "shade3"], ["on-dark", "shade4"],
    ["on-dark", "shade5"], ["soft", "card"]];
  for (const [ink, paper] of written)
    if (ratio(variable(ink), variable(paper)) < 4.5) poor.add(`${ink} on ${paper}`);
  for (const [mark, paper] of [["bars", "card"], ["shade5", "ground"], ["bad", "card"]])
    if (ratio(variable(mark), variable(paper)) < 3) poor.add(`${mark} on ${paper}`);
  return [...poor];
})()
"""
"""Texts whose contrast with what is behind them is below WCAG's AA; texts in pictures by their pairs of colours."""

VISIBLE = """
Object.fromEntries(["#matrix ~ .scroll tbody tr", ".check", "#records ~ details tbody tr", "#silent ~ .scroll tbody tr"]
  .map(s => [s.split(/[ ]/)[0], [...document.querySelectorAll(s)].filter(e => !e.hidden).length]))
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.build(failing_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def tab() -> Iterator[browser.Tab]:
    with browser.tab() as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_loads_in_silence_and_fits(tab: browser.Tab, page: Path, width: int, dark: bool) -> None:
    tab.complaints.clear()
    tab.requests.clear()
    tab.open(page, width=width, height=844, dark=dark)
    assert tab.complaints == []
    assert [unquote(urlsplit(address).path) for address in tab.requests] == [str(page.resolve())]
    assert tab.run("document.documentElement.scrollWidth") <= width, "the page itself scrolls sideways"
    first = (
        "[...document.querySelectorAll('h1, .device, .because, .first, .warning')].map(e => e.getBoundingClientRect())"
    )
    assert tab.run(f"Math.max(...{first}.map(r => r.bottom))") <= 844, "the verdict is below the first screen"
    assert tab.run(CONTRAST) == []


def test_the_contrast_is_measured(tab: browser.Tab, page: Path) -> None:
    tab.open(page)
    tab.run("document.querySelector('.because').style.color = '#999'")
    assert [found.partition(" ")[0] for found in tab.run(CONTRAST)] == ["P.because"]


def test_the_filter(tab: browser.Tab, page: Path) -> None:
    tab.open(page)
    everything = tab.run(VISIBLE)
    assert everything == {"#matrix": 3, ".check": 4, "#records": 9, "#silent": 3}
    assert tab.run("!document.getElementById('filter').hidden")
    tab.run("document.getElementById('filter-word').focus()")
    for letter in "SHAPES":
        tab.press(letter, ord(letter), letter)
    assert tab.run(VISIBLE) == {"#matrix": 0, ".check": 1, "#records": 1, "#silent": 0}
    assert tab.run("document.getElementById('filter-told').textContent").startswith("2 of ")
    tab.run("document.querySelector('#filter button').click()")
    tab.run("new Promise(done => setTimeout(done, 20))")
    assert tab.run(VISIBLE) == everything
    choose = "document.querySelector('#filter select').value = %r; document.querySelector('#filter select')"
    choose += ".dispatchEvent(new Event('input', {bubbles: true}))"
    tab.run(choose % "silent")
    assert tab.run(VISIBLE) == {"#matrix": 0, ".check": 1, "#records": 3, "#silent": 3}
    tab.run(choose % "bad")
    assert tab.run(VISIBLE) == {"#matrix": 1, ".check": 3, "#records": 3, "#silent": 0}
    tab.run(choose % "good")
    target = text.anchor("ties_away", "mxfp4_floor", "shapes")
    tab.run(f"location.hash = {target!r}; new Promise(done => setTimeout(done, 50))")  # a link to what is filtered away
    assert tab.run(VISIBLE) == everything
    assert tab.run(f"Math.abs(document.getElementById({target!r}).getBoundingClientRect().top) < 60")


def test_every_link_leads_somewhere(tab: browser.Tab, page: Path) -> None:
    tab.open(page)
    links = tab.run("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert "https://example.org/issues/12" in links  # the waiver's
    inside = [link[1:] for link in links if link.startswith("#")]
    assert len(inside) > 10
    assert tab.run(f"{inside!r}.filter(id => !document.getElementById(id))") == []
    for link in {link for link in links if not link.startswith(("#", "https://example.org/"))}:
        assert (page.parent / link).is_file()


def test_by_keyboard(tab: browser.Tab, page: Path) -> None:
    tab.open(page)
    focused = "document.activeElement.className + ' ' + document.activeElement.tagName"
    tab.press("Tab", 9)
    assert tab.run(focused) == "skip A"
    assert tab.run("document.activeElement.getBoundingClientRect().left >= 0"), "the skip link stays out of sight"
    tab.press("Enter", 13, "\r")
    assert tab.run("document.activeElement.id") == "content"
    tab.press("Tab", 9)
    assert tab.run("document.activeElement.closest('main') !== null")
    assert tab.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.open(page, width=390)
    scrolls = "['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth"
    wide = f"[...document.querySelectorAll('body *')].filter(e => {scrolls})"
    assert tab.run(f"{wide}.length") >= 5
    assert tab.run(f"{wide}.filter(e => e.tabIndex < 0).map(e => e.className)") == []
    tab.run("document.querySelector('.program summary').focus()")
    tab.press("Enter", 13, "\r")
    assert tab.run("document.querySelector('.program').open")


def test_without_script(tab: browser.Tab, page: Path) -> None:
    """Everything is there but the filter."""
    tab.open(page, scripts=False)
    assert tab.run("document.getElementById('filter').getClientRects().length") == 0
    assert tab.run(VISIBLE) == {"#matrix": 3, ".check": 4, "#records": 9, "#silent": 3}


def test_markup_in_names_is_text(tab: browser.Tab, page: Path) -> None:
    tab.open(page)
    assert tab.run("document.querySelectorAll('img, iframe, object').length") == 0
    assert tab.run("document.scripts.length") == 1
    assert "<img src=x onerror=alert(1)>" in tab.run("document.querySelector('.check:nth-of-type(3) h3').textContent")
    tab.complaints.clear()
    tab.run("document.body.appendChild(document.createElement('script')).textContent = 'window.ran = 1'; 0")
    assert tab.run("window.ran") is None, "the page's policy lets other scripts run"
    assert tab.complaints


def test_on_paper(tab: browser.Tab, page: Path, tmp_path: Path) -> None:
    """The records, folded on the screen, are printed; what serves the screen alone is not."""
    tab.open(page, dark=True)
    tab.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    tab.call("Emulation.setEmulatedMedia", media="print")
    shown = "!!document.querySelector(%r).getClientRects().length"
    assert not tab.run(shown % "nav")
    assert not tab.run(shown % "#filter")
    assert tab.run("document.querySelector('#records ~ details table').checkVisibility({contentVisibilityAuto: true})")
    assert tab.run(CONTRAST) == []
    tab.call("Emulation.setEmulatedMedia", media="")


def test_a_million_mismatches_open_at_once(tab: browser.Tab, tmp_path: Path) -> None:
    """120 sections, 2,000 rows of mismatches, pictures as large as they get: under 5 MB, and under 2 s."""
    cells = [[1 + (i * j) % 5 for j in range(64)] for i in range(32)]
    pairs = [[i % 256, i // 256 * 16 + i % 16, 1 + i] for i in range(4096)]
    full = {**PICTURES, "map": {**PICTURES["map"], "counts": cells}, "confusion": {"format": "e4m3", "pairs": pairs}}
    failing = ties_away(mismatched=1 << 20, compared=1 << 30, kinds={"tie": 1 << 20}, pictures=full)
    schemes = [f"scheme_{i}_{'x' * 40}" for i in range(100)]
    records = [replace(failing, scheme=name, check=f"check {i}", node="n" * 200) for name in schemes for i in range(20)]
    source = html.render({"run": "r", "finished": "now", "exit_status": 1, "level": "full"}, records)
    assert 1_000_000 < len(source.encode()) < 5_000_000
    path = tmp_path / "index.html"
    path.write_text(source, encoding="utf-8")
    assert min(tab.open(path, width=width) for width in (1280, 390, 1280)) < 2
