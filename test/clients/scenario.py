"""What the Python scenarios of published clients share: an operation is run and told as one line of JSON,
{"operation", "ok", "ms", "error"?}, and the process ends with 1 when one failed."""

import json
import os
import time
import traceback
import urllib.error
import urllib.request

failed = 0


def operation(name):
    """Runs the decorated function at once as an operation; the next one runs all the same."""

    def run(fn):
        global failed
        began = time.monotonic()
        told = {"operation": name, "ok": True}
        try:
            fn()
        except Exception:  # every failure is a result
            failed += 1
            told.update(ok=False, error=traceback.format_exc()[-2000:])
        told["ms"] = int((time.monotonic() - began) * 1000)
        print(json.dumps(told), flush=True)

    return run


def equal(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def raises(kind, fn):
    try:
        fn()
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


def until(what, check):
    """Waits for a condition. A check that throws did not find it yet."""
    end = time.monotonic() + 60
    why = ""
    while time.monotonic() < end:
        try:
            if check():
                return
        except Exception:
            why = traceback.format_exc()
        time.sleep(0.05)
    raise AssertionError(f"waited a minute for {what}: {why}")


def fetch(url, data=None, headers={}):
    """Asks an address and gives status and text."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data, headers=headers), timeout=30) as res:
            return res.status, res.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def finish():
    # Not sys.exit: threads of a client may still wait for what nobody says any more.
    os._exit(1 if failed else 0)
