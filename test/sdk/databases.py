"""Drives the databases of a server with the published Python SDK, unmodified: every method.

It reads PANDASTACK_API and PANDASTACK_API_KEY and prints one line of JSON per check: {"name", "ok", "error"?}.
"""

import json
import urllib.request

from checks import check, leave, raises
from pandastack import Client
from pandastack.exceptions import NotFoundError, PandastackError

client = Client()
databases = client.databases


db = {}


@check("databases.create")
def _():
    db.update(databases.create(label="sdk-py", cpu=1, memory_mb=1024))
    assert db["status"] == "running" and db["label"] == "sdk-py", db["status"]
    assert db["password"] in db["connection_url"] and db["id"] in db["connection_url"]


@check("databases.list, get, connection")
def _():
    one = next(d for d in databases.list() if d["id"] == db["id"])
    assert not {"password", "connection_url", "broker_token"} & one.keys(), sorted(one)
    assert databases.get(db["id"])["password"] == db["password"]
    found = databases.connection(db["id"])
    assert found["connection_url"] == db["connection_url"] and found["broker_token"] == db["broker_token"]
    raises(NotFoundError, lambda: databases.get("dbs" + "a" * 20))


@check("query broker")
def _():
    request = urllib.request.Request(
        db["broker_url"] + "/v1/query",
        data=json.dumps({"sql": "SELECT $1::int + 1 AS n", "params": [6]}).encode(),
        headers={"Authorization": "Bearer " + db["broker_token"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["rows"] == [[7]]


@check("databases.failover of a healthy database is refused")
def _():
    raises(PandastackError, lambda: databases.failover(db["id"]))


@check("databases.delete")
def _():
    databases.delete(db["id"])
    raises(NotFoundError, lambda: databases.get(db["id"]))


leave()
