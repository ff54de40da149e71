"""Headless Chromium, driven over a pipe: what a page does when it is opened.

The DevTools protocol in its pipe form: JSON messages that end with a null byte, to descriptor 3 of
the browser and from its descriptor 4. No network port and no package is needed.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
SWITCHES = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
)
PLACE = """
import os, sys
give, take, path, *switches = sys.argv[1:]
high = [os.dup2(int(end), 60 + k) for k, end in enumerate((give, take))]  # 3 or 4 may be in use
for end, target in zip(high, (3, 4)):
    os.dup2(end, target)
os.execv(path, [path, *switches])
"""
"""Puts the pipes where the browser looks for them, and becomes the browser."""


def find_browser():
    """Path of the first browser that is installed and starts, or None."""
    for path in filter(None, map(shutil.which, NAMES)):
        try:
            subprocess.run([path, "--version"], check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            continue
        return path
    return None


class Browser:
    """One browser with one page; a context manager that ends the process and removes its files.

    Attributes:
        errors: Texts of console errors, exceptions and refused loads.
        requests: Addresses that the page asked for.
    """

    def __init__(self, path, timeout=60.0):
        self.path, self.timeout = path, timeout
        self.errors, self.requests = [], []
        self._number, self._buffer, self._loaded = 0, b"", 0

    def __enter__(self):
        self._folder = tempfile.mkdtemp(prefix="browser")
        (give, self._to), (self._from, take) = os.pipe(), os.pipe()
        switches = [*SWITCHES, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", PLACE, str(give), str(take), self.path, *switches],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(give, take),
        )
        os.close(give)
        os.close(take)
        pages = self._ask("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in pages if one["type"] == "page")
        found = self._ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *error):
        os.close(self._to)
        os.close(self._from)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, method, **parameters):
        """Send a command to the page and return its result."""
        return self._ask(method, self._session, **parameters)

    def open(self, url):
        """Open a page and wait until it is loaded."""
        loaded = self._loaded
        self.ask("Page.navigate", url=url)
        while self._loaded == loaded:
            self._note(self._message())

    def run(self, expression):
        """Run JavaScript in the page and return the value of an expression."""
        options = {"returnByValue": True, "awaitPromise": True}
        found = self.ask("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def key(self, name, code):
        """Press a key."""
        text = {"text": "\r"} if name == "Enter" else {}
        key = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **key)

    def screen(self, width, height, *, phone=False):
        """Change the size of the screen."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def _ask(self, method, session=None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _message(self):
        """The next message from the browser."""
        end = time.monotonic() + self.timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser said nothing for {self.timeout} s"
            got = os.read(self._from, 1 << 20)
            assert got, "the browser ended"
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, message):
        """Keep what an event tells."""
        method, facts = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(facts["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning"):
            self.errors.append(str(facts["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(facts["entry"]["text"])
