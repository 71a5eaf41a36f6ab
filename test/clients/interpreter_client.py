"""Drives a node with the published Python client of E2B's code interpreter.

Usage: python3 interpreter_client.py, with E2B_API_KEY and E2B_DOMAIN set. Charts, images and data frames are the
other client's to show: both read the same answers.
"""

from e2b import TimeoutException
from e2b_code_interpreter import Sandbox

from scenario import equal, finish, operation, raises

box = None


@operation("create")
def _():
    global box
    box = Sandbox.create("base", timeout=600)


if box is None:
    finish()


@operation("run_code: python, streamed, with a result")
def _():
    out, errs, results = [], [], []
    e = box.run_code(
        "import sys\nprint('grüße 🐼')\nprint('oops', file=sys.stderr)\nx = 6 * 7\nx",
        on_stdout=lambda m: out.append(m.line), on_stderr=lambda m: errs.append(m.line), on_result=results.append,
    )
    equal((e.text, e.error, "".join(out), "".join(errs)), ("42", None, "grüße 🐼\n", "oops\n"))
    equal((results[0].is_main_result, e.logs.stdout, e.execution_count), (True, ["grüße 🐼\n"], 1))


@operation("run_code: an error has name, value and traceback")
def _():
    e = box.run_code("def f():\n    return 1 / 0\nf()").error
    equal((e.name, e.value), ("ZeroDivisionError", "division by zero"))
    assert "line 2" in e.traceback, e.traceback


@operation("run_code: time over, the kernel lives")
def _():
    # The client waits for the sum of both.
    raises(TimeoutException, lambda: box.run_code("import time\ntime.sleep(60)", timeout=1, request_timeout=1))
    equal(box.run_code("x").text, "42")


@operation("run_code: results in many forms")
def _():
    r = box.run_code("class T:\n    def _repr_html_(self): return '<b>hi</b>'\n    def _repr_json_(self): return {'a': [1]}\nT()").results[0]
    equal((r.html, r.json), ("<b>hi</b>", {"a": [1]}))


@operation("contexts: create, list, restart, remove")
def _():
    c = box.create_code_context(cwd="/tmp", language="bash")
    equal((c.cwd, c.language), ("/tmp", "bash"))
    equal(box.run_code("v=1; echo $PWD", context=c).logs.stdout, ["/tmp\n"])
    assert any(x.id == c.id for x in box.list_code_contexts())
    box.restart_code_context(c)
    equal("".join(box.run_code("echo ${v-none}", context=c).logs.stdout), "none\n")
    box.remove_code_context(c)
    assert not any(x.id == c.id for x in box.list_code_contexts())


@operation("kill")
def _():
    equal(box.kill(), True)


finish()
