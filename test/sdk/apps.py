"""Drives the apps of a server with the published Python SDK, unmodified: every method that needs no build.

It reads PANDASTACK_API and PANDASTACK_API_KEY and prints one line of JSON per check: {"name", "ok", "error"?}.
"""

import random

from checks import check, leave, raises
from pandastack import Client
from pandastack.exceptions import NotFoundError, PandastackError

client = Client()
apps = client.apps


name = f"sdk-py-{random.randrange(1 << 40):x}"
app = {}


@check("apps.create, get, list, update, previews")
def _():
    app.update(apps.create(name, "https://git.example.com/a/b.git", git_branch="main", env={"A": "1"}))
    assert (app["name"], app["git_branch"], app["status"]) == (name, "main", "created"), app
    assert apps.get(app["id"])["name"] == name
    assert any(a["id"] == app["id"] for a in apps.list())
    assert apps.update(app["id"], port=8080)["port"] == 8080
    assert apps.previews() == []


@check("apps.set_env, list_env, import_env, unset_env")
def _():
    assert apps.set_env(app["id"], "TOKEN", "sesame", secret=True) == {"key": "TOKEN", "secret": True, "scope": "all"}
    assert apps.import_env(app["id"], "B=2\n")["imported"] == 1
    env = {v["key"]: v["value"] for v in apps.list_env(app["id"])}
    assert env == {"A": "1", "B": "2", "TOKEN": "••••••••"}, env
    apps.unset_env(app["id"], "A")
    assert len(apps.list_env(app["id"])) == 2


@check("apps.deployments, and what an app without a deployment refuses")
def _():
    assert apps.deployments(app["id"]) == []
    raises(PandastackError, lambda: apps.rollback(app["id"]))
    raises(NotFoundError, lambda: apps.deployment(app["id"], "dpl" + "a" * 20))
    raises(NotFoundError, lambda: next(apps.deploy_logs(app["id"], "dpl" + "a" * 20)))


@check("apps.enable_preview_repo, preview_repos, preview variables, disable_preview_repo")
def _():
    repo = 4_000_000_000 + random.randrange(10**9)
    assert apps.enable_preview_repo(repo, repo_full_name="octo/app")["enabled"] is True
    assert any(r["github_repo_id"] == repo for r in apps.preview_repos())
    apps.set_preview_env(repo, "A", "1")
    assert [v["key"] for v in apps.list_preview_env(repo)] == ["A"]
    assert apps.import_preview_env(repo, "B=2")["imported"] == 1
    apps.unset_preview_env(repo, "A")
    apps.disable_preview_repo(repo)


@check("apps.delete")
def _():
    apps.delete(app["id"])
    raises(NotFoundError, lambda: apps.get(app["id"]))


leave()
