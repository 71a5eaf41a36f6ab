// Drives a node with the published JavaScript client of E2B, operation after operation. What a version of
// the client has no method for is left out.
//
// Usage: node e2b.mjs, with E2B_API_KEY and E2B_DOMAIN set. Everything else it finds by the names that the
// node gives: over TLS and HTTP/2, at https://<port>-<id>.<domain>.
import { strict as assert } from "node:assert";
import { Sandbox, NotFoundError, CommandExitError, TimeoutError } from "e2b";
import { finish, operation, until } from "./lib.mjs";
import { buildTemplates } from "./template.mjs";
import { useVolumes } from "./volume.mjs";

const template = process.env.E2B_TESTS_TEMPLATE || "base";
const open = new Set();
const newer = typeof Sandbox.prototype.updateNetwork === "function";
const has = (method) => typeof Sandbox.prototype[method] === "function";

let sbx;
await operation("create", async () => {
  sbx = await Sandbox.create(template, { metadata: { suite: "e2b", n: "1" }, envs: { FROM_CREATE: "yes" }, timeoutMs: 600_000 });
  open.add(sbx);
  assert.match(sbx.sandboxId, /^[a-z0-9]+$/);
});
if (!sbx) finish();

await operation("commands.run", async () => {
  const r = await sbx.commands.run("echo $FROM_CREATE; pwd; id -un; echo oops >&2");
  assert.equal(r.stdout, "yes\n/home/user\nuser\n");
  assert.equal(r.stderr, "oops\n");
  assert.equal(r.exitCode, 0);
});
await operation("commands.run: failing", async () => {
  await assert.rejects(sbx.commands.run("exit 3"), (e) => e instanceof CommandExitError && e.exitCode === 3);
});
await operation("commands.run: env, cwd, user", async () => {
  const r = await sbx.commands.run("echo $A; pwd; id -u", { envs: { A: "1" }, cwd: "/tmp", user: "root" });
  assert.equal(r.stdout, "1\n/tmp\n0\n");
});
await operation("commands.run: streamed", async () => {
  const out = [];
  await sbx.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", { onStdout: (d) => out.push(d) });
  assert.equal(out.join(""), "1\n2\n3\n");
  if (!newer) return; // older clients decode each piece by itself
  const cut = await sbx.commands.run("printf 'ü' | head -c 1; sleep 0.2; printf 'ü' | tail -c 1");
  assert.equal(cut.stdout, "ü");
});
await operation("commands.run: timeout", async () => {
  await assert.rejects(sbx.commands.run("sleep 30", { timeoutMs: 1000 }), TimeoutError);
  // The client gives up by its own clock; the server's ends the command at about the same time.
  await until("the end of the command", async () => !(await sbx.commands.list()).some((p) => p.args.join(" ").includes("sleep 30")));
});
await operation("commands: background, stdin, list, kill", async () => {
  const cmd = await sbx.commands.run("cat", { background: true, stdin: true });
  await sbx.commands.sendStdin(cmd.pid, "hello\n");
  await until("the echo", () => cmd.stdout === "hello\n");
  assert.ok((await sbx.commands.list()).some((p) => p.pid === cmd.pid));
  assert.equal(await cmd.kill(), true);
  await assert.rejects(cmd.wait());
  assert.ok(!(await sbx.commands.list()).some((p) => p.pid === cmd.pid));
  assert.equal(await sbx.commands.kill(cmd.pid), false);
});
if ("closeStdin" in Object.getPrototypeOf(sbx.commands)) await operation("commands: closeStdin", async () => {
  const cmd = await sbx.commands.run("wc -c", { background: true, stdin: true });
  await sbx.commands.sendStdin(cmd.pid, "12345");
  await sbx.commands.closeStdin(cmd.pid);
  assert.equal((await cmd.wait()).stdout.trim(), "5");
});
await operation("commands: disconnect and connect", async () => {
  // What a command says while nobody is connected is not told again, so it waits to be let go on.
  const cmd = await sbx.commands.run("until [ -e /tmp/go-on ]; do sleep 0.1; done; echo done", { background: true });
  await cmd.disconnect();
  const again = await sbx.commands.connect(cmd.pid);
  await sbx.files.write("/tmp/go-on", "");
  assert.equal((await again.wait()).stdout, "done\n");
});
await operation("files: write, read, exists, info", async () => {
  const w = await sbx.files.write("dir/a file.txt", "grüße 🐼");
  assert.equal(w.path, "/home/user/dir/a file.txt");
  assert.equal(await sbx.files.read("dir/a file.txt"), "grüße 🐼");
  assert.equal(await sbx.files.exists("/home/user/dir/a file.txt"), true);
  assert.equal(await sbx.files.exists("/nope"), false);
  const info = await sbx.files.getInfo("dir/a file.txt");
  assert.equal(info.type, "file");
  assert.equal(info.owner, "user");
  await assert.rejects(sbx.files.read("/nope"), NotFoundError);
});
await operation("files: binary, many, large", async () => {
  const bytes = new Uint8Array(3 * 1024 * 1024).map((_, i) => (i * 7 + (i >> 8)) & 255);
  await sbx.files.write("big.bin", bytes.buffer);
  assert.deepEqual(await sbx.files.read("big.bin", { format: "bytes" }), bytes);
  await sbx.files.write([{ path: "m/1", data: "one" }, { path: "m/2", data: "two" }]);
  assert.equal(await sbx.files.read("m/2"), "two");
});
await operation("files: list, makeDir, rename, remove", async () => {
  assert.equal(await sbx.files.makeDir("d1/d2"), true);
  assert.equal(await sbx.files.makeDir("d1/d2"), false);
  await sbx.files.write("d1/d2/f", "x");
  assert.deepEqual((await sbx.files.list("d1", { depth: 2 })).map((e) => e.path).sort(), ["/home/user/d1/d2", "/home/user/d1/d2/f"]);
  await sbx.files.rename("d1/d2/f", "d1/g");
  await sbx.files.remove("d1/d2");
  assert.deepEqual((await sbx.files.list("d1")).map((e) => e.name), ["g"]);
});
await operation("files: watchDir", async () => {
  await sbx.files.makeDir("w");
  const events = [];
  const handle = await sbx.files.watchDir("w", (e) => { events.push(e); });
  await sbx.files.write("w/new.txt", "x");
  await until("an event", () => events.some((e) => e.name === "new.txt"));
  await handle.stop();
});
await operation("files: signed URLs", async () => {
  const up = await sbx.uploadUrl("signed.txt", { useSignatureExpiration: 60 });
  const down = await sbx.downloadUrl("signed.txt", { useSignatureExpiration: 60 });
  const form = new FormData();
  form.append("file", new Blob(["by url"]), "signed.txt");
  const put = await fetch(up, { method: "POST", body: form });
  assert.equal(put.status, 200, await put.text());
  assert.equal(await (await fetch(down)).text(), "by url");
  const forged = await fetch(down.replace("signed.txt", "signed2.txt"));
  assert.equal(forged.status, 401);
});
await operation("pty", async () => {
  let text = "";
  const term = await sbx.pty.create({ cols: 90, rows: 30, onData: (d) => { text += new TextDecoder().decode(d); } });
  await sbx.pty.sendInput(term.pid, new TextEncoder().encode("stty size; exit 7\n"));
  await until("the size", () => text.includes("30 90"));
  await assert.rejects(term.wait(), (e) => e.exitCode === 7);
});
await operation("pty: resize, connect, kill", async () => {
  let text = "", again = "";
  const term = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => { text += new TextDecoder().decode(d); } });
  await sbx.pty.resize(term.pid, { cols: 101, rows: 41 });
  await sbx.pty.sendInput(term.pid, new TextEncoder().encode("stty size\n"));
  await until("the new size", () => text.includes("41 101"));
  if (has("getInfo") && "connect" in Object.getPrototypeOf(sbx.pty)) {
    await term.disconnect();
    const other = await sbx.pty.connect(term.pid, { onData: (d) => { again += new TextDecoder().decode(d); } });
    await sbx.pty.sendInput(term.pid, new TextEncoder().encode("echo at-$((6*7))\n"));
    await until("what is typed after it was connected to", () => again.includes("at-42"));
    await other.disconnect();
  }
  assert.equal(await sbx.pty.kill(term.pid), true);
  assert.equal(await sbx.pty.kill(term.pid), false);
});
await operation("list: filters, pages", async () => {
  const odd = "100% +ü=x y & z";
  const twin = await Sandbox.create(template, { metadata: { suite: "pages", odd }, timeoutMs: 300_000 });
  open.add(twin);
  const find = async (query) => (await Sandbox.list({ query }).nextItems()).map((s) => s.sandboxId);
  assert.deepEqual(await find({ metadata: { odd } }), [twin.sandboxId]);
  assert.deepEqual(await find({ metadata: { odd: "x y" } }), []);
  assert.ok((await find({ state: ["running", "paused"] })).includes(twin.sandboxId));
  assert.ok(!(await find({ state: ["paused"] })).includes(twin.sandboxId));
  const pages = Sandbox.list({ limit: 1 });
  const seen = [];
  while (pages.hasNext) {
    const page = await pages.nextItems();
    assert.ok(page.length <= 1);
    seen.push(...page.map((s) => s.sandboxId));
  }
  assert.ok(seen.includes(twin.sandboxId) && seen.includes(sbx.sandboxId));
  await twin.kill();
  open.delete(twin);
});
await operation("getInfo, isRunning, list", async () => {
  const info = await sbx.getInfo();
  assert.equal(info.sandboxId, sbx.sandboxId);
  assert.equal(info.metadata.suite, "e2b");
  assert.equal(await sbx.isRunning(), true);
  const pages = Sandbox.list({ query: { metadata: { suite: "e2b", n: "1" }, state: ["running"] } });
  const found = await pages.nextItems();
  assert.ok(found.some((s) => s.sandboxId === sbx.sandboxId));
});
await operation("setTimeout, metrics", async () => {
  await sbx.setTimeout(500_000);
  const end = (await sbx.getInfo()).endAt;
  const left = end.getTime() - Date.now();
  assert.ok(left > 400_000 && left < 600_000, "ends in " + left + " ms");
  const [m] = await sbx.getMetrics();
  assert.ok(m.memTotal > 0 && m.cpuCount > 0);
  if (!newer) return; // older clients do not say what time they ask about
  const hour = 3_600_000, now = Date.now();
  const times = (await sbx.getMetrics({ start: new Date(now - hour), end: new Date(now) })).map((m) => m.timestamp.getTime());
  assert.ok(times.length >= 2, "the question before was measured too: " + times);
  assert.deepEqual(times, [...times].sort((a, b) => a - b));
  assert.deepEqual(await sbx.getMetrics({ start: new Date(now - 2 * hour), end: new Date(now - hour) }), []);
});
await operation("getHost: a port from outside", async () => {
  await sbx.files.write("srv/index.html", "served");
  const server = await sbx.commands.run("python3 -m http.server 8123 -d srv", { background: true });
  const url = `https://${sbx.getHost(8123)}/`;
  await until("the server", async () => (await fetch(url)).status === 200);
  assert.equal(await (await fetch(url)).text(), "served");
  await server.kill();
  await until("the answer that the port is closed", async () => (await fetch(url)).status === 502);
});
await operation("pause and connect", async () => {
  const ticking = await sbx.commands.run("i=0; while true; do i=$((i+1)); echo $i > /tmp/tock; mv /tmp/tock /tmp/tick; sleep 0.1; done", { background: true });
  await until("a tick", async () => (await sbx.files.exists("/tmp/tick")));
  await ticking.disconnect();
  const pause = () => (has("pause") ? sbx.pause() : sbx.betaPause());
  assert.equal(await pause(), true);
  assert.equal(await pause(), false);
  const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 600_000 });
  const before = Number(await again.files.read("/tmp/tick"));
  await until("ticks after the wake", async () => Number(await again.files.read("/tmp/tick")) > before);
});
if (newer) await operation("lifecycle: paused by its timeout, resumed by a request", async () => {
  const box = await Sandbox.create(template, { lifecycle: { onTimeout: "pause", autoResume: true }, timeoutMs: 600_000 });
  open.add(box);
  await box.commands.run("echo kept > /dev/shm/f");
  await box.setTimeout(1000);
  const state = async () => (await Sandbox.getInfo(box.sandboxId)).state;
  await until("the pause", async () => (await state()) === "paused");
  const info = await Sandbox.getInfo(box.sandboxId);
  assert.deepEqual(info.lifecycle, { onTimeout: "pause", autoResume: true });
  assert.equal((await box.commands.run("cat /dev/shm/f")).stdout, "kept\n");
  assert.equal(await state(), "running");
  await box.kill();
  open.delete(box);
});
if (has("fork")) await operation("fork", async () => {
  await sbx.files.write("/tmp/origin", "parent");
  const kids = await sbx.fork({ count: 2 });
  assert.equal(kids.length, 2);
  for (const kid of kids) {
    if (kid instanceof Error) throw kid;
    open.add(kid);
    assert.equal(await kid.files.read("/tmp/origin"), "parent");
    await kid.files.write("/tmp/origin", kid.sandboxId);
  }
  assert.equal(await sbx.files.read("/tmp/origin"), "parent");
});
if (has("createSnapshot")) await operation("snapshots", async () => {
  await sbx.files.write("/tmp/state", "kept");
  const snap = await sbx.createSnapshot();
  assert.ok((await sbx.listSnapshots().nextItems()).some((s) => s.snapshotId === snap.snapshotId));
  await sbx.files.write("/tmp/state", "changed");
  const copy = await Sandbox.create(snap.snapshotId, { timeoutMs: 300_000 });
  open.add(copy);
  assert.equal(await copy.files.read("/tmp/state"), "kept");
  await copy.kill();
  open.delete(copy);
  assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), true);
});
if (newer) await operation("updateNetwork", async () => {
  const connects = (to) => sbx.commands.run(`timeout 5 bash -c 'exec 3<>/dev/tcp/${to}/9' 2>&1; echo $?`).then((r) => r.stdout);
  await sbx.updateNetwork({ allowOut: ["203.0.113.7"], denyOut: ["0.0.0.0/0"] });
  const told = (await Sandbox.getFullInfo(sbx.sandboxId)).network;
  assert.deepEqual([told.allowOut, told.denyOut], [["203.0.113.7"], ["0.0.0.0/0"]]);
  await until("the refusal of all other addresses", async () => /refused|unreachable|prohibited|not permitted/i.test(await connects("198.51.100.1")));
  await assert.rejects(sbx.updateNetwork({ allowOut: ["not an address!"] }));
  await sbx.updateNetwork({});
  assert.deepEqual((await Sandbox.getFullInfo(sbx.sandboxId)).network?.denyOut ?? [], []);
});
if (newer) await operation("network.allowPublicTraffic: false", async () => {
  const box = await Sandbox.create(template, { network: { allowPublicTraffic: false }, timeoutMs: 300_000 });
  open.add(box);
  assert.ok(box.trafficAccessToken, "no traffic access token");
  await box.files.write("srv/index.html", "private");
  await box.commands.run("python3 -m http.server 8124 -d srv", { background: true });
  const url = `https://${box.getHost(8124)}/`;
  const key = { "e2b-traffic-access-token": box.trafficAccessToken };
  await until("the server", async () => (await fetch(url, { headers: key })).status === 200);
  const closed = await fetch(url);
  assert.equal(closed.status, 403);
  assert.match(await closed.text(), /e2b-traffic-access-token/);
  assert.equal((await fetch(url, { headers: { "e2b-traffic-access-token": "0".repeat(48) } })).status, 403);
  assert.equal(await (await fetch(url, { headers: key })).text(), "private");
  await box.kill();
  open.delete(box);
});
if (newer) await operation("network.maskRequestHost", async () => {
  const box = await Sandbox.create(template, { network: { maskRequestHost: "app.example:${PORT}" }, timeoutMs: 300_000 });
  open.add(box);
  await box.files.write("host.py", "import http.server\nclass H(http.server.BaseHTTPRequestHandler):\n  def do_GET(self):\n    self.send_response(200); self.end_headers(); self.wfile.write(self.headers['Host'].encode())\nhttp.server.HTTPServer(('', 8125), H).serve_forever()\n");
  await box.commands.run("python3 host.py", { background: true });
  const url = `https://${box.getHost(8125)}/`;
  await until("the server", async () => (await fetch(url)).status === 200);
  assert.equal(await (await fetch(url)).text(), "app.example:8125");
  await box.kill();
  open.delete(box);
});
if (newer) await operation("list: order, startedAfter", async () => {
  const all = [];
  for (const n of ["1", "2"]) {
    const box = await Sandbox.create(template, { metadata: { suite: "order" }, timeoutMs: 300_000 });
    open.add(box);
    all.push(box.sandboxId);
  }
  const list = async (more) => (await Sandbox.list({ query: { metadata: { suite: "order" } }, ...more }).nextItems()).map((s) => s.sandboxId);
  assert.deepEqual(await list({ query: { metadata: { suite: "order" }, startedAfter: new Date(Date.now() + 3_600_000) } }), []);
  assert.deepEqual((await list({ query: { metadata: { suite: "order" }, startedAfter: new Date(Date.now() - 3_600_000) } })).sort(), [...all].sort());
  assert.deepEqual(await list({}), [...all].reverse());
  for (const s of [...open]) if (all.includes(s.sandboxId)) { await s.kill(); open.delete(s); }
});
if (newer) await operation("pause without memory, and connect", async () => {
  const box = await Sandbox.create(template, { envs: { FROM_CREATE: "yes" }, timeoutMs: 300_000 });
  open.add(box);
  await box.files.write("kept", "on the disk");
  await box.commands.run("echo in memory > /dev/shm/lost");
  assert.equal(await box.pause({ keepMemory: false }), true);
  const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 300_000 });
  assert.equal(await again.files.read("kept"), "on the disk");
  assert.equal(await again.files.exists("/dev/shm/lost"), false);
  assert.equal((await again.commands.run("echo $FROM_CREATE")).stdout, "yes\n");
  await again.kill();
  open.delete(box);
});
if (newer) await operation("files: metadata", async () => {
  const w = await sbx.files.write("meta.txt", "x", { metadata: { Author: "me", n: "1" } });
  assert.deepEqual(w.metadata, { author: "me", n: "1" });
  assert.deepEqual((await sbx.files.getInfo("meta.txt")).metadata, { author: "me", n: "1" });
  assert.deepEqual((await sbx.files.list("/home/user")).find((e) => e.name === "meta.txt").metadata, { author: "me", n: "1" });
  await sbx.files.write("meta.txt", "y", { metadata: { other: "2" } });
  assert.deepEqual((await sbx.files.getInfo("meta.txt")).metadata, { other: "2" });
  await sbx.files.write("meta.txt", "z");
  assert.deepEqual((await sbx.files.getInfo("meta.txt")).metadata ?? {}, {});
});
if (newer) await operation("files: watchDir with entries", async () => {
  await sbx.files.makeDir("w2");
  const events = [];
  const handle = await sbx.files.watchDir("w2", (e) => { events.push(e); }, { recursive: true, includeEntry: true });
  await sbx.files.write("w2/in/new.txt", "x");
  await until("an event with its entry", () => events.some((e) => e.entry && e.entry.path.endsWith("w2/in/new.txt")));
  await handle.stop();
});
if (newer) await buildTemplates(Sandbox);
if (newer) await useVolumes(template);
await operation("kill", async () => {
  for (const s of open) await s.kill();
  open.clear();
  assert.ok(!(await sbx.kill())); // older clients say nothing
  assert.equal(await sbx.isRunning(), false);
});
finish();
