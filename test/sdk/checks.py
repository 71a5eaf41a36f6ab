"""What the scenarios of the Python SDK have in common: the lines that they print."""

import json
import sys
import traceback

failed = 0


def check(name):
    """Runs the decorated function at once and prints a line of JSON: {"name", "ok", "error"?}."""

    def run(fn):
        global failed
        try:
            fn()
            print(json.dumps({"name": name, "ok": True}), flush=True)
        except Exception:  # every failure is a result
            failed += 1
            print(json.dumps({"name": name, "ok": False, "error": traceback.format_exc()}), flush=True)

    return run


def raises(kind, fn):
    """Returns the exception of a kind that fn raises."""
    try:
        fn()
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


def leave():
    """Ends the scenario; its status is 1 if a check has failed."""
    sys.exit(1 if failed else 0)
