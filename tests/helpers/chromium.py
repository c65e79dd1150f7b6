"""A headless Chromium driven over its debugging pipe, for tests of pages: no network, standard library alone."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def executable() -> str | None:
    """The first Chromium of this machine, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """One page in one browser. Every console message and uncaught error is kept in `messages`, every request in `requests`."""

    def __init__(self, profile: Path) -> None:
        self.messages: list[str] = []
        self.requests: list[str] = []
        down, self._out = os.pipe()
        self._in, up = os.pipe()
        command = [
            str(executable()),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
        ]
        command += ["--disable-background-networking", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND"]
        command += [f"--user-data-dir={profile}"]

        def connect() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
            a, b = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (down, up))
            os.dup2(a, 3)
            os.dup2(b, 4)

        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=connect, close_fds=False, start_new_session=True,
        )  # fmt: skip
        os.close(down)
        os.close(up)
        self._buffer, self._next, self._session = b"", 0, ""
        target = self.send("Target.createTarget", url="about:blank")
        found = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.send("Network.emulateNetworkConditions", **offline)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = ""
        try:
            self.send("Browser.close")
        except (OSError, TimeoutError):
            self._process.kill()
        self._process.wait(20)
        os.close(self._out)
        os.close(self._in)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result; AssertionError with the browser's words where it fails."""
        self._next += 1
        number = self._next
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for found in self._read(deadline):
                if found.get("id") == number:
                    assert "error" not in found, found["error"]
                    result: dict[str, Any] = found["result"]
                    return result
        raise TimeoutError(f"no answer to {method}")

    def _read(self, deadline: float) -> list[dict[str, Any]]:
        ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
        if ready:
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise OSError("the browser has ended")
            self._buffer += piece
        *whole, self._buffer = self._buffer.split(b"\0")
        found = [json.loads(text) for text in whole]
        for event in found:
            self._note(event)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(f"{params['type']}: {[a.get('value') for a in params['args']]}")
        elif event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.messages.append(str(params["entry"]))
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def show(
        self, page: Path, width: int = 1100, height: int = 900, scheme: str = "light", script: bool = True
    ) -> None:
        """Open a file at that size and color scheme, with its script or without, and wait until it has loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=page.resolve().as_uri())
        for _ in range(300):
            if self.run("document.readyState") == "complete":
                return
            time.sleep(0.05)
        raise TimeoutError(f"{page} did not load")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it prints, A4."""
        found = self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        path.write_bytes(base64.b64decode(found["data"]))

    def press(self, key: str) -> None:
        """One key, as from a keyboard."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "/": 191}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        typed = {"text": {"Enter": "\r"}.get(key, key)} if key in ("Enter", "/") else {}
        for kind in ("keyDown" if typed else "rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **typed)
