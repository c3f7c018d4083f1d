"""The page in a real browser, without a window: nothing is fetched, nothing complains, and pictures can be seen.

A page of the test's own holds the report in two frames, one as wide as a phone, and writes down what it finds.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from raysim.report.build import Built

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (360, 1280)
FOUND_MARK = "found-by-the-test"

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: install Debian's package chromium")

PROBE = """<!doctype html><body>%s<pre id="%s"></pre><script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, view = frame.contentWindow, style = e => view.getComputedStyle(e);
    const box = e => { const b = e.getBoundingClientRect(); return [b.width, b.height, b.right]; };
    return {
      fetched: view.performance.getEntriesByType("resource").map(entry => entry.name),
      pictures: [...page.querySelectorAll("figure svg")].map(box),
      letters: [...page.querySelectorAll("figure svg text")].map(e => e.getBoundingClientRect().height),
      overflow: page.documentElement.scrollWidth - view.innerWidth,
      ground: style(page.body).backgroundColor, ink: style(page.body).color,
      picture_ink: style(page.querySelector("figure svg text")).fill,
    };
  });
  document.getElementById("%s").textContent = JSON.stringify(found);
});
</script>"""


def look(page: Path, folder: Path, is_dark: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """What the browser finds in each width, and what it says on its console."""
    assert BROWSER is not None
    frames = "".join(f'<iframe width="{width}" height="800" src="{page.as_uri()}"></iframe>' for width in WIDTHS)
    probe = folder / "probe.html"
    probe.write_text(PROBE % (frames, FOUND_MARK, FOUND_MARK))
    scheme = ["--blink-settings=preferredColorScheme=0"] if is_dark else []
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000"]
    command += [*scheme, "--virtual-time-budget=20000", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    found = re.search(rf'<pre id="{FOUND_MARK}">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-500:]
    return json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)", after WCAG 2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_the_page_is_seen_as_it_should_be(built: Built, tmp_path: Path, is_dark: bool) -> None:
    page = built.page.resolve()
    found, said = look(page, tmp_path, is_dark)
    assert said == [], "the console is silent"
    for width, seen in zip(WIDTHS, found, strict=True):
        assert seen["fetched"] == []
        assert len(seen["pictures"]) == page.read_text().count("<figure ")
        for picture_width, height, right in seen["pictures"]:
            assert picture_width > 300
            assert height > 80
            assert right <= width
        assert min(seen["letters"]) > 7, "letters of a picture can be read"
        assert seen["overflow"] <= 0, "nothing is scrolled to the side"
        assert (luminance(seen["ground"]) < 0.05) == is_dark
        assert contrast(seen["ground"], seen["ink"]) > 7
        assert contrast(seen["ground"], seen["picture_ink"]) > 7
