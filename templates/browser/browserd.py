# Keeps one headless Chromium with an empty page open, and takes pictures of pages for those who ask: on port
# 9223 of loopback a line "FILE<tab>ADDRESS" is answered by "ok" or by what went wrong, once FILE holds the PNG.
# Chromium's own protocol is on port 9222, for Playwright and others. Argument: a file to make once all is warm.
import base64
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

PORT = 9223
PATIENCE = 120.0  # seconds for a page to load, and for a picture
WIDTH, HEIGHT = 1280, 720
MAX_LINE = 64 << 10
CHROMIUM = [
    "/usr/lib/chromium/chromium-headless-shell", "--remote-debugging-port=9222", "--no-sandbox", "--disable-gpu",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-breakpad", "--mute-audio", "--hide-scrollbars",
    "--disable-features=Translate,MediaRouter,OptimizationHints", "--user-data-dir=/tmp/.chromium",
    "--window-size=%d,%d" % (WIDTH, HEIGHT), "about:blank",
]


class Chromium:
    """A running Chromium and one connection to it, over its protocol on a WebSocket."""

    def __init__(self):
        self.process = subprocess.Popen(CHROMIUM, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for line in self.process.stderr:
            if b"DevTools listening on " in line:
                break
        else:
            raise SystemExit("Chromium ended before it listened")
        # What it says later is read, so that it never waits for a reader.
        threading.Thread(target=self.drain, daemon=True).start()
        path = line.split(b":9222", 1)[1].strip()
        self.socket = socket.create_connection(("127.0.0.1", 9222))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(
            b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1:9222\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)) + b"\r\nSec-WebSocket-Version: 13\r\n\r\n")
        self.input = self.socket.makefile("rb", 1 << 16)
        if b" 101 " not in self.input.readline():
            raise SystemExit("Chromium does not speak its protocol")
        while self.input.readline().strip():
            pass
        self.last = 0
        self.page = None
        self.events = []

    def drain(self):
        for _ in self.process.stderr:
            pass
        os._exit(1)  # Chromium has ended, and this program is nothing without it

    def receive(self):
        """The next whole message."""
        message = b""
        while True:
            head = self.input.read(2)
            if len(head) < 2:
                raise SystemExit("Chromium has closed its connection")
            size = head[1] & 0x7F
            if size == 126:
                size, = struct.unpack(">H", self.input.read(2))
            elif size == 127:
                size, = struct.unpack(">Q", self.input.read(8))
            data = self.input.read(size)
            if head[0] & 0x0F in (0, 1):
                message += data
                if head[0] & 0x80:
                    return json.loads(message)

    def send(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.page and not method.startswith("Target."):
            message["sessionId"] = self.page
        data = json.dumps(message).encode()
        size = struct.pack(">BBH", 0x81, 0x80 | 126, len(data)) if len(data) > 125 else struct.pack(">BB", 0x81, 0x80 | len(data))
        self.socket.sendall(size + b"\0\0\0\0" + data)
        return self.last

    def until(self, done):
        """Reads messages until done says what it wants of one, and keeps the events before it."""
        end = time.monotonic() + PATIENCE
        while True:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            message = self.receive()
            got = done(message)
            if got is not None:
                return got
            if "method" in message:
                self.events.append(message)

    def call(self, method, **params):
        wanted = self.send(method, **params)
        answer = self.until(lambda m: m if m.get("id") == wanted else None)
        if "error" in answer:
            raise RuntimeError("%s: %s" % (method, answer["error"].get("message")))
        return answer["result"]

    def open(self):
        """A new empty page. Its process belongs to no site yet, so the first page it shows needs no other."""
        self.page = None
        # Whoever drives the browser by its protocol, and closes what is there, does not meet this page.
        own = self.call("Target.createBrowserContext", disposeOnDetach=False)["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=own)["targetId"]
        self.page = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        return target

    def shoot(self, address):
        """picture, in a new page when somebody has closed the one that was open."""
        try:
            return self.picture(address)
        except RuntimeError as err:
            if "Session with given id not found" not in str(err) and "target navigated or closed" not in str(err):
                raise
        self.open()
        return self.picture(address)

    def picture(self, address):
        """The PNG of a page that has loaded."""
        self.events.clear()
        answer = self.call("Page.navigate", url=address)
        if answer.get("errorText"):
            raise RuntimeError("%s: %s" % (address, answer["errorText"]))
        # The load of this document: that of an earlier one may be told late, such as of a page of errors.
        loader = answer.get("loaderId")

        def loaded(message):
            p = message.get("params", {})
            if message.get("method") == "Page.lifecycleEvent" and p.get("name") == "load" and p.get("loaderId") == loader:
                return True

        if loader and not any(loaded(e) for e in self.events):
            self.until(loaded)
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)["data"])


def serve(browser, listener):
    while True:
        conn, _ = listener.accept()
        with conn:
            conn.settimeout(PATIENCE)
            try:
                line = conn.makefile("rb").readline(MAX_LINE).decode().rstrip("\n")
                path, tab, address = line.partition("\t")
                if not tab or not path.startswith("/"):
                    raise ValueError("a line is an absolute path, a tab and an address")
                data = browser.shoot(address)
                with open(path, "wb") as out:
                    out.write(data)
                conn.sendall(b"ok\n")
            except (OSError, ValueError, RuntimeError) as err:
                try:
                    conn.sendall(str(err).replace("\n", " ").encode() + b"\n")
                except OSError:
                    pass  # whoever asked has gone


def main():
    browser = Chromium()
    # Once through all of it, so that the first picture of a machine finds it gone before.
    warm = browser.open()
    for _ in range(2):
        browser.picture("data:text/html,<h1>warm</h1><p style='font-family:monospace'>warm")
    fresh = browser.open()
    browser.call("Target.closeTarget", targetId=warm)
    browser.call("Target.activateTarget", targetId=fresh)
    browser.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)
    listener = socket.create_server(("127.0.0.1", PORT))
    if len(sys.argv) > 1:
        open(sys.argv[1], "w").close()
    serve(browser, listener)


main()
