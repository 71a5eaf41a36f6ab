"""Drives a server with the published Python SDK, unmodified: every method that concerns sandboxes.

It reads PANDASTACK_API, PANDASTACK_API_KEY (an admin's) and SDK_DIR (an empty directory that the sandboxes
may write to) and prints one line of JSON per check: {"name", "ok", "error"?}.
"""

import os
import tempfile

from checks import check, leave, raises
import pandastack
from pandastack import Client, Sandbox
from pandastack.exceptions import (
    AuthError,
    BadRequestError,
    CommandFailed,
    NotFoundError,
    PandastackError,
    SandboxTimeout,
    TemplateBuildError,
)

DIR = os.environ["SDK_DIR"]
client = Client()


def equal(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


# A server that lacks the SDK's default template says which one to take, in SDK_TEMPLATE.
template = {"template": os.environ["SDK_TEMPLATE"]} if os.environ.get("SDK_TEMPLATE") else {}
sb = Sandbox.create(metadata={"purpose": "sdk"}, ttl_seconds=600, **template)


@check("create" if template else "create with the SDK's default template")
def _():
    equal((sb.status, sb.metadata["purpose"], len(sb.id)), ("running", "sdk", 23))


@check("list, get, refresh")
def _():
    assert any(s.id == sb.id for s in Sandbox.list())
    equal(Sandbox.get(sb.id).id, sb.id)
    equal(sb.refresh().status, "running")


@check("what is not there is NotFoundError, a wrong key AuthError, a bad name BadRequestError")
def _():
    raises(NotFoundError, lambda: Sandbox.get("sbx" + "a" * 20))
    raises(AuthError, lambda: Client(api_key="pds_" + "0" * 32).me())
    raises(BadRequestError, lambda: Sandbox.create(template="no such"))


@check("exec")
def _():
    r = sb.exec("echo out; echo err >&2; exit 3")
    equal((r.stdout, r.stderr, r.exit_code), ("out\n", "err\n", 3))
    e = raises(CommandFailed, lambda: sb.exec("echo x; exit 4", check=True))
    equal((e.exit_code, e.stdout), (4, "x\n"))
    raises(SandboxTimeout, lambda: sb.exec("sleep 600", timeout_seconds=1))
    equal(sb.commands.run("echo x", timeout=10).stdout, "x\n")


@check("run_code")
def _():
    equal(sb.run_code("print('grüß', 6*7)").stdout, "grüß 42\n")
    equal(sb.run_code("echo $((6*7))", "bash").stdout, "42\n")


@check("exec_stream")
def _():
    out, err = [], []
    text = "é€😀\u0085\u2028x\n"
    code = sb.exec_stream(f"printf '{text}'; echo e >&2; exit 5", out.append, err.append)
    equal(("".join(out), "".join(err), code), (text, "e\n", 5))
    raises(SandboxTimeout, lambda: sb.exec_stream("sleep 600", timeout_seconds=1))


@check("filesystem")
def _():
    f = os.path.join(DIR, "py", "a b.bin")
    data = bytes(range(256)) * 400
    sb.filesystem.write(f, data)
    equal(sb.filesystem.read(f), data)
    sb.filesystem.write(f, "123")
    equal(sb.filesystem.read(f), b"123")
    st = sb.filesystem.stat(f)
    equal((st.name, st.is_dir, st.size), ("a b.bin", False, 3))
    equal((sb.filesystem.exists(f), sb.filesystem.exists(f + ".none")), (True, False))
    equal([e.name for e in sb.filesystem.listdir(os.path.join(DIR, "py"))], ["a b.bin"])
    assert any(x.name == "a b.bin" for _, _, files in sb.filesystem.walk(DIR) for x in files)
    sb.filesystem.upload(__file__, os.path.join(DIR, "self.py"))
    sb.filesystem.download(os.path.join(DIR, "self.py"), "back.py")
    equal(open("back.py", "rb").read(), open(__file__, "rb").read())
    raises(NotFoundError, lambda: sb.filesystem.read(os.path.join(DIR, "none")))


@check("create_code_context")
def _():
    with sb.create_code_context() as ctx:
        ctx.run_code("x = 41")
        ex = ctx.run_code("print('hé')\nx + 1")
        equal((ex.stdout, ex.text), ("hé\n", "42"))
        assert "ZeroDivisionError" in ctx.run_code("1/0").error
        raises(SandboxTimeout, lambda: ctx.run_code("import time; time.sleep(600)", timeout_seconds=1))
        equal(ctx.run_code("x").text, "41")


@check("logs")
def _():
    assert all(isinstance(x, str) for x in sb.logs())


@check("pause, resume, hibernate, wake")
def _():
    sb.pause()
    equal(sb.refresh().status, "paused")
    sb.resume()
    sb.hibernate()
    equal(sb.refresh().status, "hibernated")
    sb.wake()
    equal(sb.refresh().status, "running")
    sb.hibernate()
    equal(sb.exec("echo awake").stdout, "awake\n")


@check("lifecycle")
def _():
    equal(sb.set_ttl(1234)["ttl_seconds"], 1234)
    equal(sb.set_persistent(True)["persistent"], True)
    equal(sb.lifecycle()["ttl_seconds"], 1234)


@check("snapshots")
def _():
    snap = sb.snapshot()
    assert any(s["id"] == snap for s in client.snapshots.list(sandbox_id=sb.id))
    equal(client.snapshots.get(snap)["sandbox_id"], sb.id)
    with Sandbox.create(from_snapshot=snap) as child:
        equal((child.from_snapshot, child.exec("echo child").stdout), (snap, "child\n"))
    client.snapshots.delete(snap)
    raises(NotFoundError, lambda: client.snapshots.get(snap))


@check("fork, fork_tree, promote")
def _():
    child = sb.fork(metadata={"a": "b"})
    equal((child.metadata["a"], child.exec("echo fork").stdout), ("b", "fork\n"))
    child.kill()
    sb.fork().kill()
    kids = sb.fork_tree(3)
    won = kids[1].promote(cleanup_siblings=True)
    equal((won["winner"], sorted(won["deleted"]), won["failures"]), (kids[1].id, sorted([kids[0].id, kids[2].id]), {}))
    kids[1].kill()


@check("explore")
def _():
    r = sb.explore(["echo one; exit 1", "echo two"], capture_files=False)
    equal(r.winner_outcome.label, "echo two")
    r.winner.kill()


@check("preview")
def _():
    assert sb.preview_url(3000).startswith(f"https://3000-{sb.id}.")
    assert isinstance(sb.preview_urls(), dict)


@check("me, tokens, templates")
def _():
    equal(client.me()["auth_method"], "token")
    t = client.tokens.create("ci", expires_in_days=1)
    assert any(x.prefix == t.prefix and x.name == "ci" for x in client.tokens.list())
    Client(api_key=t.token).me()
    client.tokens.revoke(t.prefix)
    raises(AuthError, lambda: Client(api_key=t.token).me())
    assert any(x.name == "base" for x in client.templates.list())
    equal(client.templates.get("base").name, "base")


# A server that builds says on what, in SDK_BUILD.
if os.environ.get("SDK_BUILD"):

    @check("templates.build_from_dockerfile, build_logs, wait_for_build, builds, delete")
    def _():
        with tempfile.TemporaryDirectory() as context:
            with open(os.path.join(context, "a.txt"), "w") as f:
                f.write("hello\n")
            text = f"FROM {os.environ['SDK_BUILD']}\nCOPY a.txt /srv/\nRUN cat /srv/a.txt > /srv/b\n"
            b = client.templates.build_from_dockerfile("sdk-python", text, context_dir=context, memory_mb=256)
        assert any("COPY" in line for line in client.templates.build_logs(b.id))
        assert client.templates.wait_for_build(b.id, poll_interval=0.2).is_done
        assert any(x.id == b.id for x in client.templates.builds())
        box = Sandbox.create(template="sdk-python")
        equal(box.exec("cat /srv/b").stdout, "hello\n")
        box.kill()
        bad = client.templates.build_from_dockerfile("sdk-failing", f"FROM {os.environ['SDK_BUILD']}\nRUN exit 3\n")
        raises(TemplateBuildError, lambda: client.templates.wait_for_build(bad.id, poll_interval=0.2))
        client.templates.delete("sdk-python")
        raises(NotFoundError, lambda: client.templates.get("sdk-python"))


@check("volumes: create, list, get, delete, attach at create")
def _():
    v = client.volumes.create("sdk-py", 64)
    equal((v["name"], v["size_mb"]), ("sdk-py", 64))
    assert any(x["name"] == "sdk-py" for x in client.volumes.list())
    equal(client.volumes.get("sdk-py")["size_mb"], 64)
    raises(NotFoundError, lambda: client.volumes.get("sdk-none"))
    raises(BadRequestError, lambda: client.volumes.create("a/b", 64))
    writer = Sandbox.create(volumes=[{"name": "sdk-py"}], ttl_seconds=600, **template)
    equal(writer.exec("echo kept > /mnt/sdk-py/f && sync && cat /mnt/sdk-py/f").stdout, "kept\n")
    assert writer.id in str(raises(PandastackError, lambda: Sandbox.create(volumes=[{"name": "sdk-py"}], **template)))
    raises(PandastackError, lambda: client.volumes.delete("sdk-py"))
    reader = Sandbox.create(volumes=[{"name": "sdk-py", "read_only": True}], ttl_seconds=600, **template)
    equal(reader.exec("cat /mnt/sdk-py/f; ! touch /mnt/sdk-py/g 2>/dev/null && echo refused").stdout, "kept\nrefused\n")
    reader.kill()
    writer.kill()
    client.volumes.delete("sdk-py")
    raises(NotFoundError, lambda: client.volumes.get("sdk-py"))


@check("kill, twice")
def _():
    sb.kill()
    raises(NotFoundError, lambda: sb.exec("true"))
    sb.kill()


leave()
