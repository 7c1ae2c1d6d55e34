"""The HTML page in a real browser (headless Chromium): nothing overflows, nothing is cut, everything has a keyboard.

Chromium is looked for; without one these tests are skipped, or fail when HANGDOCTOR_REQUIRE names ``chromium``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from hangdoctor.render import RENDERERS, RenderOptions
from hangdoctor.report import Report
from tests.render_support import compiling, hostile, laggard, loading, many_ranks, unknown

pytestmark = pytest.mark.slow
WIDTHS = (400, 1280)
PAGES = {
    "laggard": laggard, "compiling": compiling, "loading": loading, "unknown": unknown, "hostile": hostile,
    "64-ranks": lambda: many_ranks(64, 29), "1024-ranks": many_ranks,
}  # fmt: skip
# The page itself runs no script: a page around it looks into the frame and writes down what it finds.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><title>probe</title>
%s<pre id="found"></pre><script>
function outside(svg) {
  const view = svg.viewBox.baseVal;
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBBox();
    return box.x < view.x - 1 || box.x + box.width > view.x + view.width + 1 || box.y + box.height > view.height + 1;
  }).map(text => text.textContent);
}
function look(frame) {
  const page = frame.contentDocument, root = page.documentElement, width = root.clientWidth;
  const reaches = element => element.getBoundingClientRect().right;
  const wide = [...page.querySelectorAll("body *")].filter(element => reaches(element) > width + 1 &&
    !element.closest(".scroll") && !element.closest("details:not([open])"));
  const keys = [...page.querySelectorAll("a, summary, .scroll")].filter(element =>
    element.offsetParent !== null && !element.closest("details:not([open]) > :not(summary)"));
  const deaf = keys.filter(element => { element.focus(); return page.activeElement !== element; });
  return {
    width: width, scroll: root.scrollWidth, wide: wide.map(element => element.outerHTML.slice(0, 90)),
    cut: [...page.querySelectorAll("svg")].flatMap(outside), keys: keys.length,
    deaf: deaf.map(element => element.outerHTML.slice(0, 90)),
    ground: getComputedStyle(page.body).backgroundColor, text: getComputedStyle(page.body).color,
  };
}
window.onload = () => {
  document.getElementById("found").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(look));
};
</script>"""


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if path := shutil.which(name):
            return path
    if "chromium" in os.environ.get("HANGDOCTOR_REQUIRE", ""):
        pytest.fail("HANGDOCTOR_REQUIRE names chromium, and there is none")
    pytest.skip("NOT TESTED: the HTML page in a browser. No Chromium here")


def browse(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    common = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
              "--allow-file-access-from-files", "--enable-logging=stderr"]  # fmt: skip
    return subprocess.run(
        [chromium(), *common, *arguments], capture_output=True, text=True, timeout=120, check=True
    )


def write(report: Report, folder: Path) -> Path:
    file = folder / "page.html"
    file.write_text(RENDERERS["html"].render(report, RenderOptions()), encoding="utf-8")
    return file


def probe(report: Report, folder: Path, *arguments: str) -> list[dict[str, object]]:
    """What the page around sees at each width."""
    write(report, folder)
    frames = "".join(f'<iframe width="{width}" height="900" src="page.html"></iframe>' for width in WIDTHS)
    around = folder / "around.html"
    around.write_text(PROBE % frames, encoding="utf-8")
    done = browse(folder, *arguments, "--virtual-time-budget=4000", "--dump-dom", around.as_uri())
    # A style that the policy refuses, a broken document and the like are messages on the console.
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.S)
    assert found, done.stdout[-400:]
    return list(json.loads(unescape(found[1])))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_nothing_overflows_is_cut_or_out_of_reach(name: str, tmp_path: Path) -> None:
    for found, width in zip(probe(PAGES[name](), tmp_path), WIDTHS, strict=True):
        assert width - 30 <= int(str(found["width"])) <= width
        assert found["scroll"] == found["width"] and found["wide"] == []
        assert found["cut"] == [], "text of a drawing lies outside of it"
        assert found["deaf"] == [] and int(str(found["keys"])) >= 5


def test_a_dark_room_gets_a_dark_page(tmp_path: Path) -> None:
    dark = probe(laggard(), tmp_path, "--blink-settings=preferredColorScheme=0")[0]
    light = probe(laggard(), tmp_path, "--blink-settings=preferredColorScheme=1")[0]
    assert (light["ground"], dark["ground"]) == ("rgb(255, 255, 255)", "rgb(20, 23, 28)")
    assert light["text"] != dark["text"]


def test_the_printed_page_unfolds_and_stays_short(tmp_path: Path) -> None:
    pdf = tmp_path / "page.pdf"
    browse(tmp_path, f"--print-to-pdf={pdf}", "--no-pdf-header-footer", write(laggard(), tmp_path).as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
    assert 2 <= pages <= 8


@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_draws_it(width: int, tmp_path: Path) -> None:
    image = tmp_path / "page.png"
    browse(
        tmp_path,
        f"--window-size={width},900",
        f"--screenshot={image}",
        write(hostile(), tmp_path).as_uri(),
    )
    assert image.stat().st_size > 10_000
