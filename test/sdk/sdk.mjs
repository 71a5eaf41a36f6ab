// Drives a server with the published TypeScript SDK, unmodified: every method that concerns sandboxes.
// It reads PANDASTACK_API, PANDASTACK_API_KEY (an admin's), SDK_DIR (a directory that the
// sandboxes may write to) and, for the command line too, SDK_CLI; it prints one line of JSON per check: {"name", "ok", "error"?}.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import assert from "node:assert/strict";

import { check, exit, sdk } from "./checks.mjs";

const { Client, Sandbox, NotFoundError, AuthError, BadRequestError, SandboxTimeout, PandaStackError, TemplateBuildError } = sdk;

const dir = process.env.SDK_DIR;
const client = new Client();

const sb = await Sandbox.create({ metadata: { purpose: "sdk" }, ttlSeconds: 600 });

await check("create with the SDK's default template", () => {
  assert.match(sb.id, /^sbx[a-z2-7]{20}$/);
  assert.equal(sb.status, "running");
  assert.equal(sb.info.metadata.purpose, "sdk");
});
await check("sandboxes.list and get", async () => {
  const all = await client.sandboxes.list();
  assert.ok(all.some((s) => s.id === sb.id));
  assert.equal((await Sandbox.get(sb.id)).id, sb.id);
});
await check("get of what is not there is NotFoundError", () => assert.rejects(() => Sandbox.get("sbx" + "a".repeat(20)), NotFoundError));
await check("a wrong key is AuthError", () => assert.rejects(() => new Client({ apiKey: "pds_" + "0".repeat(32) }).me(), AuthError));
await check("a bad template name is BadRequestError", () => assert.rejects(() => Sandbox.create({ template: "no such" }), BadRequestError));
await check("a template that is not there is BadRequestError", () => assert.rejects(() => Sandbox.create({ template: "nowhere" }), BadRequestError));
await check("exec", async () => {
  const r = await sb.exec("echo out; echo err >&2; exit 3");
  assert.deepEqual([r.stdout, r.stderr, r.exitCode, r.exit_code], ["out\n", "err\n", 3, 3]);
  assert.equal(typeof r.duration_ms, "number");
});
await check("exec with check throws", () => assert.rejects(() => sb.exec("exit 4", { check: true }), /code 4/));
await check("exec that runs out of time is SandboxTimeout", () => assert.rejects(() => sb.exec("sleep 600", { timeoutSeconds: 1 }), SandboxTimeout));
await check("commands.run", async () => assert.equal((await sb.commands.run("echo x")).stdout, "x\n"));
await check("runCode python", async () => assert.equal((await sb.runCode("print('grüß', 6*7)", "python")).stdout, "grüß 42\n"));
await check("execStream", async () => {
  let out = "", err = "";
  const code = await sb.execStream("for i in 1 2 3; do printf 'é€😀%s\\n' $i; done; echo e >&2; exit 5", { onStdout: (s) => (out += s), onStderr: (s) => (err += s) });
  assert.deepEqual([out, err, code], ["é€😀1\né€😀2\né€😀3\n", "e\n", 5]);
});
await check("execStream that runs out of time is SandboxTimeout", () => assert.rejects(() => sb.execStream("sleep 600", { timeoutSeconds: 1 }), SandboxTimeout));
await check("filesystem write, read, stat, exists, list, walk", async () => {
  const f = join(dir, "ts", "a b.txt");
  await sb.filesystem.write(f, "grüß\n");
  assert.equal(await sb.filesystem.read(f), "grüß\n");
  const st = await sb.filesystem.stat(f);
  assert.deepEqual([st.name, st.is_dir, st.size], ["a b.txt", false, 7]);
  assert.equal(await sb.filesystem.exists(f), true);
  assert.equal(await sb.filesystem.exists(f + ".none"), false);
  assert.deepEqual((await sb.filesystem.list(join(dir, "ts"))).map((e) => e.name), ["a b.txt"]);
  const seen = [];
  for await (const { dir: d, files } of sb.filesystem.walk(dir)) seen.push(...files.map((x) => join(d, x.name)));
  assert.ok(seen.includes(f));
});
await check("filesystem upload keeps every byte", async () => {
  const local = join(process.cwd(), "up.bin");
  const bytes = Buffer.from(Array.from({ length: 100000 }, (_, i) => i % 256));
  writeFileSync(local, bytes);
  await sb.filesystem.upload(local, join(dir, "up.bin"));
  const sum = (await sb.exec(`sha256sum ${join(dir, "up.bin")}`)).stdout.split(" ")[0];
  assert.equal(sum, createHash("sha256").update(bytes).digest("hex"));
});
await check("filesystem download", async () => {
  await sb.filesystem.write(join(dir, "d.txt"), "text");
  await sb.filesystem.download(join(dir, "d.txt"), join(process.cwd(), "d.txt"));
  assert.equal(readFileSync(join(process.cwd(), "d.txt"), "utf8"), "text");
});
await check("read of a missing file is NotFoundError", () => assert.rejects(() => sb.filesystem.read(join(dir, "none")), NotFoundError));
await check("createCodeContext keeps state and gives rich results", async () => {
  const ctx = await sb.createCodeContext("python");
  assert.ok(ctx.id);
  await ctx.runCode("x = 41");
  const ex = await ctx.runCode("print('hé')\nx + 1");
  assert.equal(ex.stdout, "hé\n");
  assert.equal(ex.text, "42");
  const html = await ctx.runCode("class T:\n    def _repr_html_(self): return '<b>hi</b>'\nT()");
  assert.equal(html.results[0].html, "<b>hi</b>");
  const bad = await ctx.runCode("1/0");
  assert.match(bad.error, /ZeroDivisionError/);
  await assert.rejects(() => ctx.runCode("import time; time.sleep(600)", { timeoutSeconds: 1 }), SandboxTimeout);
  assert.equal((await ctx.runCode("x")).text, "41");
  await ctx.close();
});
await check("logs", async () => {
  const lines = [];
  for await (const l of sb.logs({ stream: "both", follow: false })) lines.push(l);
  assert.ok(lines.every((l) => typeof l === "string"));
});
await check("logs that are followed end with the sandbox", async () => {
  const other = await Sandbox.create();
  const done = (async () => { for await (const l of other.logs({ follow: true })) assert.equal(typeof l, "string"); })();
  await other.kill();
  await done;
});
await check("pause and resume", async () => {
  await sb.pause();
  assert.equal((await Sandbox.get(sb.id)).status, "paused");
  await sb.resume();
  assert.equal((await Sandbox.get(sb.id)).status, "running");
});
await check("hibernate and wake, and wake on use", async () => {
  await sb.hibernate();
  assert.equal((await Sandbox.get(sb.id)).status, "hibernated");
  await sb.wake();
  assert.equal((await Sandbox.get(sb.id)).status, "running");
  await sb.hibernate();
  assert.equal((await sb.exec("echo awake")).stdout, "awake\n");
});
await check("lifecycle, setTtl, setPersistent", async () => {
  assert.equal((await sb.setTtl(1234)).ttl_seconds, 1234);
  assert.equal((await sb.setPersistent(true)).persistent, true);
  const l = await sb.lifecycle();
  assert.deepEqual([l.ttl_seconds, l.persistent, typeof l.idle_seconds], [1234, true, "number"]);
  assert.equal((await sb.setTtl(0)).ttl_seconds, 0);
});
await check("snapshot, the registry, and a sandbox from it", async () => {
  const snap = await sb.snapshot();
  assert.equal(snap.sandbox_id, sb.id);
  assert.ok((await client.snapshots.list({ sandbox_id: sb.id })).some((s) => s.id === snap.id));
  assert.equal((await client.snapshots.get(snap.id)).id, snap.id);
  const child = await Sandbox.create({ fromSnapshot: snap.id });
  assert.equal(child.info.from_snapshot, snap.id);
  assert.equal((await child.exec("echo child")).stdout, "child\n");
  await child.kill();
  await client.snapshots.delete(snap.id);
  await assert.rejects(() => client.snapshots.get(snap.id), NotFoundError);
});
await check("fork", async () => {
  const child = await sb.fork({ metadata: { a: "b" } });
  assert.notEqual(child.id, sb.id);
  assert.equal(child.status, "running");
  assert.equal(child.info.metadata.a, "b");
  assert.equal((await child.exec("echo fork")).stdout, "fork\n");
  await child.kill();
  const plain = await sb.fork();
  await plain.kill();
});
await check("forkTree and promote", async () => {
  const kids = await sb.forkTree({ count: 3, metadata: { n: "1" } });
  assert.equal(kids.length, 3);
  const tree = kids[0].info.metadata.fork_tree_id;
  assert.ok(tree && kids.every((k) => k.info.metadata.fork_tree_id === tree));
  const won = await kids[1].promote({ cleanupSiblings: true });
  assert.equal(won.winner, kids[1].id);
  assert.deepEqual([...won.deleted].sort(), [kids[0].id, kids[2].id].sort());
  assert.deepEqual(won.failures, {});
  await assert.rejects(() => Sandbox.get(kids[0].id), NotFoundError);
  await kids[1].kill();
});
await check("explore", async () => {
  const r = await sb.explore(["echo one; exit 1", "echo two", { label: "env", cmd: "sh -c 'echo $K'", env: { K: "it's" } }],
    { scoreFn: (_, o) => (o.stdoutTail.includes("it's") ? 2 : 1), captureFiles: false });
  assert.equal(r.winnerOutcome.label, "env");
  assert.equal(r.errors.length, 0);
  assert.equal(r.reaped.length, 2);
  await r.winner.kill();
});
await check("previewUrl and previewUrls", async () => {
  assert.match(sb.previewUrl(3000), new RegExp(`^https://3000-${sb.id}\\.`));
  assert.equal(typeof (await sb.previewUrls()), "object");
});
await check("me", async () => {
  const me = await client.me();
  assert.equal(me.auth_method, "token");
  assert.ok(me.current_org ?? me.current_org_id);
});
await check("tokens", async () => {
  const t = await client.tokens.create("ci");
  assert.match(t.token, /^pds_[0-9a-f]{32}$/);
  assert.ok((await client.tokens.list()).some((x) => x.prefix === t.prefix && x.label === "ci"));
  await new Client({ apiKey: t.token }).me();
  await client.tokens.revoke(t.prefix);
  await assert.rejects(() => new Client({ apiKey: t.token }).me(), AuthError);
});
await check("templates", async () => {
  assert.ok((await client.templates.list()).some((t) => t.name === "base"));
  assert.equal((await client.templates.get("base")).name, "base");
  await assert.rejects(() => client.templates.get("nowhere"), NotFoundError);
});
// The command line that comes with the package, where the node under test has machines of its own.
const program = join(process.cwd(), "node_modules/@pandastack/sdk/dist/cli.js");
async function cli(...args) {
  const { stdout } = await promisify(execFile)(process.execPath, [program, ...args], { timeout: 120_000 });
  return stdout;
}
if (process.env.SDK_CLI) {
  const made = {};
  const remote = "/tmp/from the cli.txt", local = join(process.env.HOME, "here.txt");
  const has = (want, ...args) => async () => {
    const out = await cli(...args.map((a) => (typeof a === "function" ? a() : a)));
    assert.ok(out.includes(typeof want === "function" ? want() : want), out);
  };
  const id = () => made.id, snap = () => made.snap;
  writeFileSync(local, "local");
  await check("cli: sandbox create", async () => { made.id = JSON.parse(await cli("sandbox", "create", "--ttl", "600", "--metadata", "a=b")).id; });
  await check("cli: sandbox list", has(id, "sandbox", "list"));
  await check("cli: sandbox get", has('"a": "b"', "sandbox", "get", id));
  await check("cli: sandbox exec", has("out\n", "sandbox", "exec", id, "--", "echo out"));
  await check("cli: sandbox run-code", has("42\n", "sandbox", "run-code", id, "--language", "python", "--", "print(6*7)"));
  await check("cli: sandbox logs", has("", "sandbox", "logs", id));
  await check("cli: sandbox ssh", async () => {
    const run = promisify(execFile)(process.execPath, [program, "sandbox", "ssh", made.id], { timeout: 120_000 });
    run.child.stdin.write("echo from-$((40+2))\nexit\n");
    assert.match((await run).stdout, /from-42/);
  });
  await check("cli: fs write", has('"bytes": 5', "fs", "write", id, "--path", remote, "--content", "hello"));
  await check("cli: fs read", has("hello", "fs", "read", id, "--path", remote));
  await check("cli: fs upload", has('"bytes": 5', "fs", "upload", id, "--local", local, "--remote", remote + ".2"));
  await check("cli: fs download", async () => {
    await cli("fs", "download", made.id, "--remote", remote + ".2", "--local", local + ".2");
    assert.equal(readFileSync(local + ".2", "utf8"), "local");
  });
  await check("cli: sandbox snapshot", async () => { made.snap = JSON.parse(await cli("sandbox", "snapshot", made.id)).id; });
  await check("cli: snapshot list", has(snap, "snapshot", "list", "--sandbox", id));
  await check("cli: snapshot get", has(snap, "snapshot", "get", snap));
  for (const verb of ["pause", "resume", "hibernate", "wake"]) await check(`cli: sandbox ${verb}`, has(() => `${verb} ${made.id}`, "sandbox", verb, id));
  await check("cli: sandbox set-ttl, lifecycle", async () => {
    await cli("sandbox", "set-ttl", made.id, "--ttl", "700");
    assert.match(await cli("sandbox", "lifecycle", made.id), /"ttl_seconds": 700/);
  });
  await check("cli: sandbox set-persistent", has('"persistent": true', "sandbox", "set-persistent", id, "--persistent", "true"));
  await check("cli: sandbox create --from-snapshot", async () => {
    const child = JSON.parse(await cli("sandbox", "create", "--from-snapshot", made.snap));
    assert.equal(child.from_snapshot, made.snap);
    await cli("sandbox", "kill", child.id);
  });
  await check("cli: sandbox fork", async () => {
    const out = JSON.parse(await cli("sandbox", "fork", made.id, "--metadata", "k=v"));
    assert.equal(out.metadata.k, "v");
    await cli("sandbox", "delete", out.id);
  });
  await check("cli: sandbox fork-tree, promote", async () => {
    const out = JSON.parse(await cli("sandbox", "fork-tree", made.id, "--count", "2"));
    const children = Array.isArray(out) ? out : out.children;
    assert.equal(children.length, 2);
    await cli("sandbox", "promote", children[0].id);
    for (const c of children) await cli("sandbox", "kill", c.id).catch(() => {}); // promote may have ended one
  });
  await check("cli: sandbox preview-url", has(() => "80-" + made.id, "sandbox", "preview-url", id, "--port", "80"));
  await check("cli: sandbox preview-urls", has("{", "sandbox", "preview-urls", id));
  await check("cli: me", has('"auth_method": "token"', "me"));
  await check("cli: token create, list, revoke", async () => {
    const t = JSON.parse(await cli("token", "create", "--label", "cli"));
    assert.ok((await cli("token", "list")).includes(t.prefix));
    await cli("token", "revoke", t.prefix);
    assert.ok(!(await cli("token", "list")).includes(t.prefix));
  });
  await check("cli: snapshot delete", has(() => "deleted snapshot", "snapshot", "delete", snap));
  await check("cli: template list", has('"base"', "template", "list"));
  await check("cli: sandbox delete", has(() => "deleted " + made.id, "sandbox", "delete", id));
  await check("cli: sandbox exec after the end", () => assert.rejects(cli("sandbox", "exec", made.id, "--", "true"), (e) => /deleted/.test(e.stderr)));
}
// A server that builds says on what, in SDK_BUILD.
const base = process.env.SDK_BUILD;
if (base) {
  const built = "sdk-built";
  await check("templates.buildFromDockerfile, buildLogs, waitForBuild", async () => {
    const b = await client.templates.buildFromDockerfile({ name: built, dockerfile: `FROM ${base}\nCOPY dir/a.txt /srv/\nRUN cat /srv/a.txt > /srv/b\nCMD ["sleep", "100000"]\n`,
      context: { "dir/a.txt": "hello\n" }, cpu: 1, memoryMb: 256 });
    assert.ok(["queued", "running"].includes(b.status), b.status);
    const lines = [];
    for await (const line of client.templates.buildLogs(b.id)) lines.push(line);
    assert.ok(lines.some((l) => l.includes("is ready")), lines.join("\n"));
    const done = await client.templates.waitForBuild(b.id, { intervalMs: 200 });
    assert.equal(done.status, "done");
    assert.ok(done.ended_at);
  });
  await check("templates.builds, buildStatus, list, get of what was built", async () => {
    const b = (await client.templates.builds()).find((x) => x.name === built);
    assert.equal((await client.templates.buildStatus(b.id)).id, b.id);
    const t = await client.templates.get(built);
    assert.equal(t.memory_mb, 256);
    assert.ok(!t.is_global && t.size_bytes > 0);
    assert.ok((await client.templates.list()).some((x) => x.name === built));
  });
  await check("create from what was built", async () => {
    const box = await Sandbox.create({ template: built });
    assert.equal((await box.exec("cat /srv/b; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 100000'")).stdout.split("\n")[0], "hello");
    await box.kill();
  });
  await check("templates: builds that fail say why", async () => {
    const b = await client.templates.buildFromDockerfile({ name: "sdk-failing", dockerfile: `FROM ${base}\nRUN echo why >&2; exit 3\n` });
    await assert.rejects(() => client.templates.waitForBuild(b.id, { intervalMs: 200 }), (e) => e instanceof TemplateBuildError && /why/.test(e.message));
    const r = await client.templates.build({ name: "sdk-rootfs", rootfs: new TextEncoder().encode("no archive"), sizeMb: 64 });
    await assert.rejects(() => client.templates.waitForBuild(r.id, { intervalMs: 200 }), TemplateBuildError);
    const i = await client.templates.register({ name: "sdk-image", imageRef: "127.0.0.1:1/nothing:here", sizeMb: 64 });
    await assert.rejects(() => client.templates.waitForBuild(i.id, { intervalMs: 200 }), TemplateBuildError);
  });
  await check("templates.delete", async () => {
    await client.templates.delete(built);
    await assert.rejects(() => client.templates.get(built), NotFoundError);
  });
}
await check("volumes: create, list, get", async () => {
  const v = await client.volumes.create({ name: "sdk-js", size_mb: 64 });
  assert.deepEqual([v.name, v.size_mb, typeof v.created_at], ["sdk-js", 64, "string"]);
  assert.ok((await client.volumes.list()).some((x) => x.name === "sdk-js"));
  assert.equal((await client.volumes.get("sdk-js")).size_mb, 64);
  await assert.rejects(() => client.volumes.get("sdk-none"), NotFoundError);
  await assert.rejects(() => client.volumes.create({ name: "sdk-js", size_mb: 64 }), PandaStackError);
  await assert.rejects(() => client.volumes.create({ name: "a/b", size_mb: 64 }), BadRequestError);
  await assert.rejects(() => client.volumes.create({ name: "sdk-huge", size_mb: 1 << 20 }), BadRequestError);
});
await check("volumes: attach at create, one writer, read-only", async () => {
  const writer = await Sandbox.create({ volumes: [{ name: "sdk-js" }], ttlSeconds: 600 });
  assert.equal((await writer.exec("echo kept > /mnt/sdk-js/f && sync && cat /mnt/sdk-js/f")).stdout, "kept\n");
  await assert.rejects(() => Sandbox.create({ volumes: [{ name: "sdk-js" }] }), (e) => e.message.includes(writer.id));
  await assert.rejects(() => client.volumes.delete("sdk-js"), PandaStackError);
  const reader = await Sandbox.create({ volumes: [{ name: "sdk-js", readOnly: true }], ttlSeconds: 600 });
  assert.equal((await reader.exec("cat /mnt/sdk-js/f; ! touch /mnt/sdk-js/g 2>/dev/null && echo refused")).stdout, "kept\nrefused\n");
  await reader.kill();
  await writer.kill();
});
await check("volumes.delete", async () => {
  await client.volumes.delete("sdk-js");
  await assert.rejects(() => client.volumes.get("sdk-js"), NotFoundError);
});
await check("kill, twice", async () => {
  await sb.kill();
  await assert.rejects(() => sb.exec("true"), NotFoundError);
  await sb.kill();
});
exit();
