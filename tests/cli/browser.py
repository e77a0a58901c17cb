"""Chromium without a head, driven over WebDriver's HTTP by the standard library: pages, key strokes, console, pictures."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
)
START_S, WAIT_S = 60.0, 60.0  # of a machine that others use


class Browser:
    """A session of a browser."""

    def __init__(self, address: str, session: str) -> None:
        self._address, self._session = address, session

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return _call(method, f"{self._address}/session/{self._session}/{path}", body)

    def run(self, script: str, *arguments: Any) -> Any:
        """Value that a script returns."""
        return self.call("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def open(self, url: str) -> None:
        """Open a report and wait until it is drawn."""
        self.call("POST", "url", {"url": "about:blank"})
        self.call("POST", "url", {"url": url})
        self.wait("return document.body.dataset.ready === 'yes'")

    def wait(self, script: str) -> Any:
        """Value of a script, once it is true. TimeoutError after ``WAIT_S``."""
        end = time.monotonic() + WAIT_S
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"never true: {script}; the page says {self.run('return document.body.innerText')[:500]!r}"
                )
            time.sleep(0.05)
        return value

    def resize(self, width: int, height: int, *, dark: bool) -> None:
        """Size of the page as a device has it, and the colours that its owner prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"features": [scheme]})

    def devtools(self, command: str, parameters: Any) -> Any:
        return self.call("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def press(self, keys: str) -> None:
        """Type into what has the focus; keys of WebDriver are letters of its private range."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def console(self) -> list[str]:
        """Messages since the last look, warnings and errors."""
        entries = self.call("POST", "se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page."""
        shot = self.devtools("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, ended at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address)
        options = {"binary": BROWSER, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = _call("POST", f"{address}/session", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]
        result = Browser(address, session)
        try:
            yield result
        finally:
            result.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(10)


def _wait_for(address: str) -> None:
    end = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError):
            if _call("GET", f"{address}/status")["ready"]:
                return
        if time.monotonic() > end:
            raise TimeoutError("chromedriver does not start")
        time.sleep(0.1)


def _call(method: str, url: str, body: Any = None) -> Any:
    data = None if method != "POST" else json.dumps(body or {}).encode()
    request = urllib.request.Request(url.rstrip("/"), data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{method} {url}: {error.read().decode()[:1000]}") from error
