// Drives a node with the published JavaScript client of E2B, operation after operation, and prints one
// line of JSON for each: {"operation", "ok", "error"?}. It exits 1 when one failed.
//
// Usage: node e2b.mjs, with E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL set.
import { strict as assert } from "node:assert";
import { Sandbox, NotFoundError, CommandExitError, TimeoutError } from "e2b";

const template = process.env.E2B_TESTS_TEMPLATE || "base";
let failed = 0;
const open = new Set();

async function operation(name, run) {
  try {
    await run();
    console.log(JSON.stringify({ operation: name, ok: true }));
  } catch (e) {
    failed++;
    console.log(JSON.stringify({ operation: name, ok: false, error: String(e && e.stack || e).slice(0, 2000) }));
  }
}

async function until(what, check) {
  const end = Date.now() + 60_000;
  for (;;) {
    if (await check()) return;
    if (Date.now() > end) throw new Error("waited a minute for " + what);
    await new Promise((r) => setTimeout(r, 50));
  }
}

// reach fetches an address that the client made, https://<port>-<id>.<domain>/..., from the node under
// test, which has neither that name nor a certificate for it: the same place by headers. An address
// without such a name is one of the agent.
function reach(address, options = {}) {
  const url = new URL(address);
  const named = /^(\d+)-([a-z0-9]+)\./.exec(url.hostname);
  const [, port, id] = named || [, "49983", sbx.sandboxId];
  const headers = { ...options.headers, "E2b-Sandbox-Id": id, "E2b-Sandbox-Port": port };
  return fetch(process.env.E2B_SANDBOX_URL + url.pathname + url.search, { ...options, headers });
}

let sbx;
await operation("create", async () => {
  sbx = await Sandbox.create(template, { metadata: { suite: "e2b", n: "1" }, envs: { FROM_CREATE: "yes" }, timeoutMs: 600_000 });
  open.add(sbx);
  assert.match(sbx.sandboxId, /^[a-z0-9]+$/);
});
if (!sbx) process.exit(1);

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
  await sbx.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done; printf 'ü' | head -c 1; sleep 0.2; printf 'ü' | tail -c 1", { onStdout: (d) => out.push(d) });
  assert.equal(out.join(""), "1\n2\n3\nü");
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
await operation("commands: closeStdin", async () => {
  const cmd = await sbx.commands.run("wc -c", { background: true, stdin: true });
  await sbx.commands.sendStdin(cmd.pid, "12345");
  await sbx.commands.closeStdin(cmd.pid);
  assert.equal((await cmd.wait()).stdout.trim(), "5");
});
await operation("commands: disconnect and connect", async () => {
  const cmd = await sbx.commands.run("sleep 1; echo done", { background: true });
  await cmd.disconnect();
  const again = await sbx.commands.connect(cmd.pid);
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
  const put = await reach(up, { method: "POST", body: form });
  assert.equal(put.status, 200, await put.text());
  assert.equal(await (await reach(down)).text(), "by url");
  const forged = await reach(down.replace("signed.txt", "signed2.txt"));
  assert.equal(forged.status, 401);
});
await operation("pty", async () => {
  let text = "";
  const term = await sbx.pty.create({ cols: 90, rows: 30, onData: (d) => { text += new TextDecoder().decode(d); } });
  await sbx.pty.sendInput(term.pid, new TextEncoder().encode("stty size; exit 7\n"));
  await until("the size", () => text.includes("30 90"));
  await assert.rejects(term.wait(), (e) => e.exitCode === 7);
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
});
await operation("getHost: a port from outside", async () => {
  await sbx.files.write("srv/index.html", "served");
  const server = await sbx.commands.run("python3 -m http.server 8123 -d srv", { background: true });
  const url = `https://${sbx.getHost(8123)}/`;
  await until("the server", async () => (await reach(url)).status === 200);
  assert.equal(await (await reach(url)).text(), "served");
  await server.kill();
  assert.equal((await reach(url)).status, 502);
});
await operation("pause and connect", async () => {
  const ticking = await sbx.commands.run("i=0; while true; do i=$((i+1)); echo $i > /tmp/tock; mv /tmp/tock /tmp/tick; sleep 0.1; done", { background: true });
  await until("a tick", async () => (await sbx.files.exists("/tmp/tick")));
  await ticking.disconnect();
  assert.equal(await sbx.pause(), true);
  assert.equal(await sbx.pause(), false);
  const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 600_000 });
  const before = Number(await again.files.read("/tmp/tick"));
  await until("ticks after the wake", async () => Number(await again.files.read("/tmp/tick")) > before);
});
await operation("fork", async () => {
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
await operation("snapshots", async () => {
  await sbx.files.write("/tmp/state", "kept");
  const snap = await sbx.createSnapshot();
  await sbx.files.write("/tmp/state", "changed");
  const copy = await Sandbox.create(snap.snapshotId, { timeoutMs: 300_000 });
  open.add(copy);
  assert.equal(await copy.files.read("/tmp/state"), "kept");
  await copy.kill();
  open.delete(copy);
  assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), true);
});
await operation("kill", async () => {
  for (const s of open) await s.kill();
  open.clear();
  assert.equal(await sbx.kill(), false);
  assert.equal(await sbx.isRunning(), false);
});
process.exit(failed ? 1 : 0);
