"""A headless Chromium, driven through its debugging pipe: for tests of the report's page and for its pictures.

Nothing is needed but the browser: messages of the DevTools protocol are JSON, each ended by a NUL.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
SECONDS = 60

_LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3), os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """The path of a Chromium: what LOWBIT_CHROMIUM names, else the first that is installed."""
    return os.environ.get("LOWBIT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page, and everything that it complained of.

    Attributes:
      complaints: messages of the console and exceptions of scripts. requests: addresses that it asked for.
    """

    def __init__(self, write: int, read: int):
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        given = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Log.entryAdded":
                self.complaints.append(given["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(str([argument.get("value") for argument in given["args"]]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"]))
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
        return message

    def open(
        self, page: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> float:
        """Shows a file in a window of that size; the seconds until its load event and two frames have passed.

        Args:
          dark: what the reader prefers. scripts: whether the page may run any; without, no frames are awaited.
        """
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1 + phone, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._loaded = False
        started = time.perf_counter()
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self.call("Page.navigate", url=address)
        while not self._loaded:
            self._next()
        if scripts:
            self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        return time.perf_counter() - started

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, as a person presses it."""
        for kind in ("keyDown", "keyUp"):
            given = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **given)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of what the window shows, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def printed(self, path: Path) -> None:
        """The page as a PDF, as a person prints it."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"]))


@contextmanager
def tab() -> Iterator[Tab]:
    """A fresh browser with one page, closed at the end.

    Raises:
      FileNotFoundError: no Chromium is installed.
    """
    program = find()
    if program is None:
        raise FileNotFoundError(f"no Chromium: none of {', '.join(NAMES)} is installed")
    pipes = [end for pair in (os.pipe(), os.pipe()) for end in pair]
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in pipes]  # away from 3 and 4, which the launcher gives it
    for end in pipes:
        os.close(end)
    command_read, command_write, answer_read, answer_write = ends
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions"),
            *("--force-color-profile=srgb", f"--user-data-dir={profile}", "--remote-debugging-pipe"),
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(command_read), str(answer_write), program, *options],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        try:
            yield Tab(command_write, answer_read)
        finally:
            os.close(command_write)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(answer_read)
