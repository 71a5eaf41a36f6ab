"""Drives the functions of a server with the published Python SDK, unmodified: every method.

It reads PANDASTACK_API and PANDASTACK_API_KEY and prints one line of JSON per check: {"name", "ok", "error"?}.
"""

import os
import random
import tempfile

from checks import check, leave, raises
from pandastack import Client
from pandastack.exceptions import BadRequestError, NotFoundError

client = Client()
functions = client.functions


name = f"sdk-py-{random.randrange(1 << 40):x}"
code = "exports.handler = async (event) => ({ sum: event.a + event.b, level: process.env.LEVEL });\n"
fn = {}


@check("functions.deploy, of a directory")
def _():
    with tempfile.TemporaryDirectory() as dir:
        with open(os.path.join(dir, "handler.js"), "w") as f:
            f.write(code)
        fn.update(functions.deploy(name, "nodejs", dir, env={"LEVEL": "debug"}, template="base"))
    assert (fn["name"], fn["entrypoint"], fn["is_ready"], fn["version"]) == (name, "handler.js", True, 1), fn


@check("functions.get, list, update")
def _():
    assert functions.get(fn["id"])["name"] == name
    assert any(f["id"] == fn["id"] for f in functions.list())
    assert functions.update(fn["id"], public=True)["public"] is True


@check("functions.invoke, trigger, runs, metrics")
def _():
    run = functions.invoke(fn["id"], input={"a": 1, "b": 2})
    assert (run["status"], run["result"]) == ("success", {"sum": 3, "level": "debug"}), run
    assert functions.trigger(fn["id"], input={"a": 1, "b": 1})["result"]["sum"] == 2
    assert len(functions.runs(fn["id"])) == 2
    assert functions.metrics(fn["id"], 1)["total"] == 2


@check("schedules of a function")
def _():
    s = client.schedules.create(name, fn["id"], "0 9 * * *", paused=True)
    assert (s["function_id"], s["paused"]) == (fn["id"], True), s
    assert client.schedules.trigger(s["id"])["id"]
    assert len(client.schedules.runs(s["id"])) > 0
    client.schedules.delete(s["id"])


@check("what is not possible, and functions.delete")
def _():
    raises(NotFoundError, lambda: functions.get("fun" + "a" * 20))
    raises(BadRequestError, lambda: functions.update(fn["id"], name="No Name"))
    functions.delete(fn["id"])
    raises(NotFoundError, lambda: functions.get(fn["id"]))


leave()
