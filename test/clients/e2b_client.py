"""Drives a node with the published Python client of E2B, operation after operation.

Usage: python3 e2b_client.py, with E2B_API_KEY and E2B_DOMAIN set. Everything else it finds by the names that the
node gives: over TLS and HTTP/2, at https://<port>-<id>.<domain>.
"""

import asyncio
import datetime
import io

from e2b import (
    AsyncSandbox,
    AsyncVolume,
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    Sandbox,
    SandboxQuery,
    SandboxState,
    TimeoutException,
    Volume,
    VolumeException,
    VolumeNotFoundException,
    VolumePathNotFoundException,
)
from e2b.sandbox.commands.command_handle import PtySize

from scenario import equal, fetch, finish, operation, raises, until

box = None
opened = []


def create(**opts):
    made = Sandbox.create("base", timeout=600, **opts)
    opened.append(made)
    return made


@operation("Sandbox.create")
def _():
    global box
    box = create(metadata={"suite": "python", "odd": "50% +é=x y & z"}, envs={"FROM_CREATE": "yes"})


if box is None:
    finish()


@operation("commands.run: foreground")
def _():
    r = box.commands.run("echo $FROM_CREATE; pwd; id -un; echo grüße >&2")
    equal((r.stdout, r.stderr, r.exit_code), ("yes\n/home/user\nuser\n", "grüße\n", 0))
    r = box.commands.run("echo $A; pwd; id -u", envs={"A": "1"}, cwd="/tmp", user="root")
    equal(r.stdout, "1\n/tmp\n0\n")
    equal(raises(CommandExitException, lambda: box.commands.run("echo why >&2; exit 3")).exit_code, 3)


@operation("commands.run: streamed")
def _():
    out, errs = [], []
    box.commands.run("for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.05; done", on_stdout=out.append, on_stderr=errs.append)
    equal(("".join(out), "".join(errs)), ("1\n2\n3\n", "e1\ne2\ne3\n"))
    equal(box.commands.run("printf 'ü' | head -c 1; sleep 0.1; printf 'ü' | tail -c 1").stdout, "ü")


@operation("commands.run: time over")
def _():
    raises(TimeoutException, lambda: box.commands.run("sleep 33", timeout=1))
    until("the end of the command", lambda: not any("sleep 33" in " ".join(p.args) for p in box.commands.list()))


@operation("commands: background, stdin, list, kill")
def _():
    cmd = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(cmd.pid, "hello\n")
    equal(next(iter(cmd))[0], "hello\n")
    assert any(p.pid == cmd.pid for p in box.commands.list())
    equal(cmd.kill(), True)
    raises(CommandExitException, cmd.wait)
    equal(box.commands.kill(cmd.pid), False)
    counted = box.commands.run("wc -c", background=True, stdin=True)
    counted.send_stdin("12345")
    counted.close_stdin()
    equal(counted.wait().stdout.strip(), "5")


@operation("commands: disconnect and connect")
def _():
    # What a command says while nobody is connected is not told again, so it waits to be let go on.
    cmd = box.commands.run("until [ -e /tmp/go-on ]; do sleep 0.1; done; echo done", background=True)
    cmd.disconnect()
    again = box.commands.connect(cmd.pid)
    box.files.write("/tmp/go-on", "")
    equal(again.wait().stdout, "done\n")


@operation("files: write, read, exists, info")
def _():
    equal(box.files.write("dir/a file.txt", "grüße 🐼").path, "/home/user/dir/a file.txt")
    equal(box.files.read("dir/a file.txt"), "grüße 🐼")
    equal((box.files.exists("dir/a file.txt"), box.files.exists("/nope")), (True, False))
    info = box.files.get_info("dir/a file.txt")
    equal((info.type.value, info.owner, info.size), ("file", "user", 12))
    raises(NotFoundException, lambda: box.files.read("/nope"))


@operation("files: binary, many, streamed")
def _():
    data = bytes((i * 7 + (i >> 8)) & 255 for i in range(1 << 20))
    box.files.write("big.bin", data)
    equal(bytes(box.files.read("big.bin", format="bytes")), data)
    equal(b"".join(box.files.read("big.bin", format="stream")), data)
    box.files.write_files([{"path": "m/1", "data": "one"}, {"path": "m/2", "data": "two"}])
    equal(box.files.read("m/2"), "two")
    equal(box.files.write("meta.txt", "x", metadata={"Author": "me"}).metadata, {"author": "me"})


@operation("files: list, make_dir, rename, remove")
def _():
    equal((box.files.make_dir("d1/d2"), box.files.make_dir("d1/d2")), (True, False))
    box.files.write("d1/d2/f", "x")
    equal(sorted(e.path for e in box.files.list("d1", depth=2)), ["/home/user/d1/d2", "/home/user/d1/d2/f"])
    equal(box.files.rename("d1/d2/f", "d1/g").path, "/home/user/d1/g")
    box.files.remove("d1/d2")
    equal([e.name for e in box.files.list("d1")], ["g"])


@operation("files: watch_dir")
def _():
    box.files.make_dir("w")
    seen = []
    handle = box.files.watch_dir("w", recursive=True, include_entry=True)
    box.files.write("w/in/new.txt", "x")

    def found():
        seen.extend(handle.get_new_events())
        return any(e.name == "in/new.txt" and e.entry and e.entry.path == "/home/user/w/in/new.txt" for e in seen)

    until("the event with its entry", found)
    handle.stop()


@operation("files: signed URLs")
def _():
    up = box.upload_url("signed.txt", use_signature_expiration=60)
    down = box.download_url("signed.txt", use_signature_expiration=60)
    form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"signed.txt\"\r\n\r\nby url\r\n--b--\r\n".encode()
    equal(fetch(up, form, {"Content-Type": "multipart/form-data; boundary=b"})[0], 200)
    equal(fetch(down), (200, "by url"))
    equal(fetch(down.replace("signed.txt", "signed2.txt"))[0], 401)


@operation("pty: create, resize, connect, kill")
def _():
    term = box.pty.create(PtySize(rows=30, cols=90))
    box.pty.resize(term.pid, PtySize(rows=41, cols=101))
    box.pty.send_stdin(term.pid, b"stty size\n")
    text = b""
    for _, _, data in term:
        text += data or b""
        if b"41 101" in text:
            break
    term.disconnect()
    again = box.pty.connect(term.pid)
    box.pty.send_stdin(term.pid, b"echo at-$((6*7)); exit 7\n")
    said = []
    equal(raises(CommandExitException, lambda: again.wait(on_pty=said.append)).exit_code, 7)
    assert b"at-42" in b"".join(said), said
    equal(box.pty.kill(term.pid), False)


@operation("get_info, is_running, list: filters, pages")
def _():
    twin = create(metadata={"suite": "python", "n": "2"})
    info = box.get_info()
    equal((info.sandbox_id, info.metadata["suite"], info.state), (box.sandbox_id, "python", SandboxState.RUNNING))
    equal(box.is_running(), True)

    def find(**query):
        return [s.sandbox_id for s in Sandbox.list(query=SandboxQuery(**query)).next_items()]

    equal(find(metadata={"odd": "50% +é=x y & z"}), [box.sandbox_id])
    equal(find(metadata={"suite": "python", "n": "2"}, state=[SandboxState.RUNNING]), [twin.sandbox_id])
    equal(find(metadata={"suite": "python"}, state=[SandboxState.PAUSED]), [])
    pages, seen = Sandbox.list(query=SandboxQuery(metadata={"suite": "python"}), limit=1), []
    while pages.has_next:
        page = pages.next_items()
        assert len(page) <= 1
        seen += [s.sandbox_id for s in page]
    equal(sorted(seen), sorted([box.sandbox_id, twin.sandbox_id]))
    equal(twin.kill(), True)
    equal((twin.kill(), twin.is_running()), (False, False))


@operation("set_timeout, get_metrics")
def _():
    box.set_timeout(500)
    left = (box.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert 400 < left < 600, left
    m = box.get_metrics()[-1]
    assert m.cpu_count > 0 and m.mem_total > 0 and m.disk_total > 0, m


@operation("get_host: a port from outside")
def _():
    box.files.write("srv/index.html", "served")
    server = box.commands.run("python3 -m http.server 8123 -d srv", background=True, timeout=0)
    url = f"https://{box.get_host(8123)}/"
    until("the server", lambda: fetch(url) == (200, "served"))
    server.kill()
    until("the answer that the port is closed", lambda: fetch(url)[0] == 502)


@operation("pause and connect")
def _():
    box.commands.run("echo in memory > /dev/shm/kept")
    equal((box.pause(), box.pause()), (True, False))
    equal(box.get_info().state, SandboxState.PAUSED)
    again = Sandbox.connect(box.sandbox_id, timeout=600)
    equal(again.commands.run("cat /dev/shm/kept").stdout, "in memory\n")
    equal(box.files.read("signed.txt"), "by url")


@operation("fork")
def _():
    box.files.write("/tmp/origin", "parent")
    kids = box.fork(count=2)
    equal(len(kids), 2)
    for kid in kids:
        assert isinstance(kid, Sandbox), kid
        opened.append(kid)
        equal(kid.files.read("/tmp/origin"), "parent")
        kid.files.write("/tmp/origin", kid.sandbox_id)
    equal(box.files.read("/tmp/origin"), "parent")


@operation("snapshots")
def _():
    box.files.write("/tmp/state", "kept")
    snap = box.create_snapshot()
    assert any(s.snapshot_id == snap.snapshot_id for s in box.list_snapshots().next_items())
    box.files.write("/tmp/state", "changed")
    copy = Sandbox.create(snap.snapshot_id, timeout=300)
    opened.append(copy)
    equal(copy.files.read("/tmp/state"), "kept")
    equal(Sandbox.delete_snapshot(snap.snapshot_id), True)


@operation("update_network")
def _():
    def connects(to):
        return box.commands.run(f"timeout 5 bash -c 'exec 3<>/dev/tcp/{to}/9' 2>&1; true").stdout

    box.update_network({"allow_out": ["203.0.113.7"], "deny_out": ["0.0.0.0/0"]})
    words = ("refused", "unreachable", "prohibited", "not permitted")
    until("the refusal of all other addresses", lambda: any(w in connects("198.51.100.1").lower() for w in words))
    raises(Exception, lambda: box.update_network({"allow_out": ["not an address!"]}))
    box.update_network({})


@operation("AsyncSandbox: run, stdin, files, watch, pty, kill")
def _():
    async def drive():
        sbx = await AsyncSandbox.create("base", timeout=600)
        try:
            r = await asyncio.gather(*(sbx.commands.run(f"echo {i}") for i in range(5)))
            equal([x.stdout for x in r], [f"{i}\n" for i in range(5)])
            cmd = await sbx.commands.run("cat", background=True, stdin=True)
            await sbx.commands.send_stdin(cmd.pid, "hello")
            await sbx.commands.close_stdin(cmd.pid)
            equal((await cmd.wait()).stdout, "hello")
            event, ready = asyncio.Event(), asyncio.Event()
            await sbx.files.make_dir("w")
            watch = await sbx.files.watch_dir("w", lambda e: event.set())
            await sbx.files.write("w/f", "x")
            await asyncio.wait_for(event.wait(), 60)
            await watch.stop()
            term = await sbx.pty.create(PtySize(rows=30, cols=90), on_data=lambda d: ready.set() if b"30 90" in d else None)
            await sbx.pty.send_stdin(term.pid, b"stty size\n")
            await asyncio.wait_for(ready.wait(), 60)
            equal(await term.kill(), True)
        finally:
            await sbx.kill()

    asyncio.run(drive())


volume = None


@operation("Volume.create, list, connect, get_info")
def _():
    global volume
    volume = Volume.create("e2e-python")
    assert any(v.volume_id == volume.volume_id and v.name == "e2e-python" for v in Volume.list())
    equal(Volume.connect(volume.volume_id).name, "e2e-python")
    assert Volume.get_info(volume.volume_id).token
    raises(VolumeException, lambda: Volume.create("e2e-python"))
    raises(VolumeNotFoundException, lambda: Volume.connect("vol" + "a" * 20))


@operation("volume: write_file, read_file")
def _():
    stat = volume.write_file("/hello.txt", "grüße 🐼", uid=1000, gid=1001, mode=0o640)
    equal((stat.name, stat.type.value, stat.path, stat.size), ("hello.txt", "file", "/hello.txt", 12))
    equal((stat.uid, stat.gid, stat.mode), (1000, 1001, 0o640))
    equal(volume.read_file("/hello.txt"), "grüße 🐼")
    raises(VolumeException, lambda: volume.write_file("/hello.txt", "other"))
    data = bytes((i * 7 + (i >> 8)) & 255 for i in range(3 << 20))
    volume.write_file("/hello.txt", io.BytesIO(data), force=True)
    equal(volume.read_file("/hello.txt", format="bytes"), data)
    equal(b"".join(volume.read_file("/hello.txt", format="stream")), data)
    volume.write_file("/empty", "")
    equal(volume.read_file("/empty"), "")
    raises(VolumePathNotFoundException, lambda: volume.read_file("/nope"))
    raises(VolumePathNotFoundException, lambda: volume.write_file("/no/parent", ""))


@operation("volume: make_dir, list, exists, get_info, update_metadata, remove")
def _():
    equal(volume.make_dir("/dir", mode=0o700, uid=1000, gid=1000).mode & 0o777, 0o700)
    equal(volume.make_dir("/deep/er/dir", force=True).type.value, "directory")
    raises(VolumeException, lambda: volume.make_dir("/dir"))
    raises(VolumePathNotFoundException, lambda: volume.make_dir("/no/parent"))
    volume.write_file("/dir/f", "x")
    equal([e.path for e in volume.list("/dir")], ["/dir/f"])
    assert "/deep/er/dir" in [e.path for e in volume.list("/", depth=3)]
    raises(VolumePathNotFoundException, lambda: volume.list("/nope"))
    stat = volume.update_metadata("/dir/f", uid=1001, gid=1002, mode=0o755)
    equal((stat.uid, stat.gid, stat.mode), (1001, 1002, 0o755))
    raises(VolumePathNotFoundException, lambda: volume.update_metadata("/nope", mode=0o644))
    equal((volume.exists("/dir"), volume.get_info("/dir").type.value), (True, "directory"))
    volume.remove("/dir")
    equal(volume.exists("/dir"), False)
    raises(VolumePathNotFoundException, lambda: volume.remove("/dir"))
    raises(AuthenticationException, lambda: volume.list("/", token="wrong"))


@operation("volume_mounts: a sandbox has the volume, and leaves what it wrote")
def _():
    volume.write_file("/from-outside", "seen", force=True)
    mounted = create(volume_mounts={"/mnt/data": volume})
    equal(mounted.files.read("/mnt/data/from-outside"), "seen")
    equal(mounted.get_info().volume_mounts, [{"name": "e2e-python", "path": "/mnt/data"}])
    mounted.commands.run("echo kept > /mnt/data/from-inside", user="root")
    equal(volume.read_file("/from-inside"), "kept\n")
    raises(VolumeException, lambda: Volume.destroy(volume.volume_id))
    mounted.kill()
    equal(volume.read_file("/from-inside"), "kept\n")


@operation("AsyncVolume: create, write, read, list, destroy")
def _():
    async def drive():
        vol = await AsyncVolume.create("e2e-python-async")
        try:
            await vol.write_file("/f", "x")
            equal(await vol.read_file("/f"), "x")
            assert "f" in [e.name for e in await vol.list("/")]
        finally:
            equal(await AsyncVolume.destroy(vol.volume_id), True)

    asyncio.run(drive())


@operation("Volume.destroy")
def _():
    equal((Volume.destroy(volume.volume_id), Volume.destroy(volume.volume_id)), (True, False))


@operation("kill")
def _():
    for s in opened:
        s.kill()
    equal(box.is_running(), False)
    raises(NotFoundException, lambda: Sandbox.connect(box.sandbox_id))


finish()
