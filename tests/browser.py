"""Pages as a headless Chromium shows them, and what is wrong with what it shows."""

import base64
import importlib.util
import shutil
import time
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

WIDTHS, SCHEMES = (1400, 400), ("light", "dark")
WINDOWS = list(product(WIDTHS, SCHEMES))
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars")
_FAULTS = (Path(__file__).parent / "browser.js").read_text()
_AXE = """const done = arguments[0];
axe.run().then(({violations}) => done(violations.filter((one) => ["serious", "critical"].includes(one.impact))
  .flatMap((one) => one.nodes.map((node) => [one.id, node.target.join(" ") + " " + node.html.slice(0, 200)]))));"""
_FORGET = "try { localStorage.clear(); } catch { }"  # what pages keep, such as the color scheme of a visit before
_LEGIBLE = 4.5  # least contrast of a text (WCAG 2.2, 1.4.3)
_TALL = 30_000  # pixels of a window that holds a whole page, so that everything is painted


class Browser:
    """Drives the Chromium and the chromedriver of this machine with selenium; skips the test where one is missing."""

    def __init__(self) -> None:
        webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra browser")
        program, driver = next(filter(None, map(shutil.which, _PROGRAMS)), None), shutil.which("chromedriver")
        if program is None or driver is None:
            pytest.skip(f"needs {_PROGRAMS[0]} and chromedriver, see CONTRIBUTING.md")
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for option in _OPTIONS:
            options.add_argument(f"--{option}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self._driver = webdriver.Chrome(options, webdriver.ChromeService(driver))
        self._tell("Page.addScriptToEvaluateOnNewDocument", {"source": _FORGET})

    def show(self, address: str, width: int, scheme: str, tall: int = _TALL) -> None:
        """Open the page in a window of this size whose user prefers this color scheme; everything folded is opened."""
        size = {"width": width, "height": tall, "deviceScaleFactor": 1, "mobile": False}
        self._tell("Emulation.setDeviceMetricsOverride", size)
        prefers = {"name": "prefers-color-scheme", "value": scheme}
        self._tell("Emulation.setEmulatedMedia", {"features": [prefers]})
        self._driver.get_log("browser")  # what pages before said
        self._driver.get(address)
        self.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")

    def wait(self, expression: str, seconds: float = 20.0) -> None:
        """Until the JavaScript expression is true of the page."""
        end = time.monotonic() + seconds
        while not self.run(f"return Boolean({expression})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} is not true after {seconds} s")
            time.sleep(0.05)

    def faults(self) -> list[str]:
        """Texts that lie on each other, are cut off or hard to see; a page wider than its window; what the console has
        of errors and warnings."""
        said = [one["message"] for one in self._driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]
        return [*self.run(_FAULTS, _LEGIBLE), *said]

    def inaccessible(self) -> list[str]:
        """Serious findings of axe-core; none where the package axe-core-python is not installed."""
        if (found := importlib.util.find_spec("axe_core_python")) is None or found.origin is None:
            return []
        self.run((Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
        violations = self._driver.execute_async_script(_AXE)
        return [f"axe: {rule}: {target}" for rule, target in violations]

    def run(self, script: str, *words: Any) -> Any:
        """What the JavaScript returns."""
        return self._driver.execute_script(script, *words)

    def picture(self, path: Path) -> None:
        """Save the whole page as PNG."""
        wide, tall = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": wide, "height": tall, "scale": 1}
        shot = self._tell("Page.captureScreenshot", {"format": "png", "clip": clip, "captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))

    def _tell(self, command: str, values: dict[str, Any]) -> Any:
        return self._driver.execute_cdp_cmd(command, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._driver.quit()
