// Drives the functions of a server with the published TypeScript SDK, unmodified: every method. It reads PANDASTACK_API and
// PANDASTACK_API_KEY and prints one line of JSON per check: {"name", "ok", "error"?}.
import { gunzipSync } from "node:zlib";
import assert from "node:assert/strict";

import { check, exit, sdk, tar } from "./checks.mjs";

const { Client, NotFoundError, BadRequestError } = sdk;

const client = new Client({ timeoutMs: 300_000 });
const functions = client.functions;

const template = "base"; // the SDK's own default takes minutes to bake
const name = "sdk-js-" + Math.random().toString(36).slice(2, 8);
const code = 'print("hello")\ndef handler(event, context):\n    return {"doubled": 2 * event["n"]}\n';

let fn;
await check("functions.create with empty code, as the SDK's command line does", async () => {
  fn = await functions.create(name, "python", Buffer.alloc(0), { template, env: { LEVEL: "debug" } });
  assert.match(fn.id, /^fun[a-z2-7]{20}$/);
  assert.deepEqual([fn.name, fn.runtime, fn.entrypoint, fn.is_ready, fn.public], [name, "python", "handler.py", false, false]);
  assert.ok(fn.endpoint && fn.url && Date.parse(fn.created_at) > 0);
});
if (!fn) process.exit(1);
await check("functions.list, get, update", async () => {
  assert.ok((await functions.list()).some((f) => f.id === fn.id));
  assert.equal((await functions.get(fn.id)).name, name);
  const changed = await functions.update(fn.id, { public: true, env: { LEVEL: "info" }, entrypoint: "handler.py" });
  assert.deepEqual([changed.public, Object.keys(changed.env)], [true, ["LEVEL"]]);
});
await check("functions.deployBundle and getCode", async () => {
  fn = await functions.deployBundle(fn.id, tar({ "handler.py": code }), "handler.py");
  assert.deepEqual([fn.is_ready, fn.version], [true, 1]);
  assert.equal(gunzipSync(Buffer.from(await functions.getCode(fn.id))).toString(), code);
});
await check("functions.invoke and trigger", async () => {
  const run = await functions.invoke(fn.id, { n: 21 });
  assert.equal(run.status, "success", JSON.stringify(run));
  assert.deepEqual([run.function_id, run.result], [fn.id, { doubled: 42 }]);
  assert.ok(run.duration_ms >= 0 && Date.parse(run.started_at) > 0 && Date.parse(run.ended_at) > 0);
  const bad = await functions.trigger(fn.id);
  assert.deepEqual([bad.status, bad.error.type], ["error", "TypeError"]);
});
await check("functions.recordRun, runs, metrics", async () => {
  const recorded = await functions.recordRun(fn.id, { status: "success", exit_code: 0, stdout: "x", stderr: "", duration_ms: 12 });
  assert.deepEqual([recorded.status, recorded.stdout], ["success", "x"]);
  assert.equal((await functions.runs(fn.id)).length, 3);
  const m = await functions.metrics(fn.id, 1);
  assert.deepEqual([m.period, m.errors > 0, m.total >= 2], [1, true, true]);
});
await check("schedules of a function", async () => {
  const s = await client.schedules.create(name, fn.id, "0 9 * * *", { paused: true });
  assert.deepEqual([s.function_id, s.cron, s.paused], [fn.id, "0 9 * * *", true]);
  assert.equal((await client.schedules.get(s.id)).name, name);
  const run = await client.schedules.trigger(s.id);
  assert.ok(run.id && run.status);
  assert.ok((await client.schedules.runs(s.id)).length > 0);
  await client.schedules.delete(s.id);
});
await check("what is not possible", async () => {
  await assert.rejects(() => functions.create("No Name", "python", "x"), BadRequestError);
  await assert.rejects(() => functions.create(name + "-x", "cobol", "x"), BadRequestError);
  await assert.rejects(() => functions.get("fun" + "a".repeat(20)), NotFoundError);
});
await check("functions.delete", async () => {
  await functions.delete(fn.id);
  await assert.rejects(() => functions.get(fn.id), NotFoundError);
});
exit();
