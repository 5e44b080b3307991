"""Runs Chromium without a window, and calls its DevTools protocol through pipes."""
from harness import *
import base64
import os
import select
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    def __init__(self):
        read, self.write = os.pipe()
        self.read, write = os.pipe()
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{read} 4>&{write}', "-", CHROMIUM, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             f"--user-data-dir={WORK}/chromium", "about:blank"],
            pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(self.process.kill)
        os.close(read), os.close(write)
        self.text, self.number, self.events, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network": self.call(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.text:
            assert select.select([self.read], [], [], 120)[0], "Chromium does not answer"
            more = os.read(self.read, 1 << 20)
            assert more, "Chromium has ended"
            self.text += more
        message, self.text = self.text.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session: message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.number: self.events.append(answer)
        assert "result" in answer, (method, answer)
        return answer["result"]

    def value(self, expression):
        """Returns the value of a JavaScript expression, or of its promise."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, (expression, got)
        return got["result"].get("value")

    def wait(self, expression):
        for _ in range(1200):
            if self.value(expression): return
            time.sleep(0.05)
        sys.exit(f"{expression} does not become true: {self.value('document.body.innerText')}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def size(self, width, height, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def errors(self):
        """Returns the exceptions, failed loads, blocked resources and console errors of the page."""
        self.value("0")
        return [e for e in self.events if e["method"] in ("Runtime.exceptionThrown", "Network.loadingFailed")
                or e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] in ("error", "warning")
                or e["method"] == "Runtime.consoleAPICalled" and e["params"]["type"] == "error"]
