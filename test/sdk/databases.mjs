// Drives the databases of a server with the published TypeScript SDK, unmodified: every method, and the calls of the API that it
// lacks. It reads PANDASTACK_API and PANDASTACK_API_KEY and prints one line of JSON per check: {"name", "ok", "error"?}.
import assert from "node:assert/strict";

import { check, exit, sdk } from "./checks.mjs";

const { Client, NotFoundError, BadRequestError, PandaStackError } = sdk;

const client = new Client();
const databases = client.databases;

// call makes a request to the API with a bearer, the key if there is none.
async function call(method, path, body, bearer = process.env.PANDASTACK_API_KEY) {
  const url = path.startsWith("http") ? path : process.env.PANDASTACK_API + "/v1" + path;
  const headers = { authorization: "Bearer " + bearer, "content-type": "application/json" };
  const r = await fetch(url, { method, headers, body: body && JSON.stringify(body) });
  const text = await r.text();
  return { status: r.status, body: text ? JSON.parse(text) : undefined };
}

const query = (d, sql, token = d.broker_token) => call("POST", d.broker_url + "/v1/query", { sql }, token);
const secret = (d) => [d.password, d.connection_url, d.broker_token];

let db;
await check("databases.create", async () => {
  db = await databases.create({ label: "sdk-js", size: "1g", always_on: false });
  assert.equal(db.status, "running");
  assert.deepEqual([db.label, db.size, db.always_on, db.username, db.database], ["sdk-js", "1g", false, "pandastack", "pandastack"]);
  assert.match(db.id, /^dbs[a-z2-7]{20}$/);
  assert.match(db.broker_token, /^pds_pg_/);
  assert.ok(db.connection_url.startsWith(`postgres://pandastack:`) || db.connection_url.startsWith(`postgresql://pandastack:`));
  assert.ok(db.connection_url.includes(db.id) && db.host.startsWith(db.id + "."));
  assert.ok(Math.abs(db.created_at - Date.now() / 1000) < 600);
});
if (!db) process.exit(1);
await check("databases.create with what is not possible", async () => {
  await assert.rejects(() => databases.create({ size: "3g" }), BadRequestError);
  await assert.rejects(() => databases.create({ label: "x".repeat(65) }), BadRequestError);
});
await check("databases.list has no credentials", async () => {
  const one = (await databases.list()).find((d) => d.id === db.id);
  assert.equal(one.label, "sdk-js");
  assert.deepEqual(secret(one), [undefined, undefined, undefined]);
});
await check("databases.get", async () => {
  assert.deepEqual(secret(await databases.get(db.id)), secret(db));
  await assert.rejects(() => databases.get("dbs" + "a".repeat(20)), NotFoundError);
});
await check("databases.connection", async () => {
  const c = await databases.connection(db.id);
  assert.deepEqual([c.connection_url, c.broker_url, c.broker_token], [db.connection_url, db.broker_url, db.broker_token]);
});
await check("query broker", async () => {
  assert.equal((await query(db, "CREATE TABLE t AS SELECT 7 AS n")).status, 200);
  const r = await query(db, "SELECT n FROM t");
  assert.deepEqual([r.status, r.body.columns[0].name, r.body.rows], [200, "n", [[7]]]);
  for (const wrong of ["pds_pg_wrong", process.env.PANDASTACK_API_KEY]) assert.equal((await query(db, "SELECT 1", wrong)).status, 401);
  assert.equal((await call("GET", db.broker_url + "/v1/health")).body.postgres, "up");
});
await check("databases.update", async () => {
  assert.equal((await databases.update(db.id, { always_on: true })).always_on, true);
  assert.equal((await databases.update(db.id, { always_on: false })).always_on, false);
  await assert.rejects(() => databases.update(db.id, { alwayson: true }), BadRequestError);
});
await check("stats", async () => {
  const { status, body } = await call("GET", `/databases/${db.id}/stats`);
  assert.equal(status, 200, JSON.stringify(body));
  assert.match(body.postgres_version, /^1[67]\./);
  assert.ok(body.db_size_bytes > 1e6 && body.max_connections > 10 && body.uptime_seconds >= 0);
  assert.ok(body.cache_hit_ratio > 0 && body.disk_used_bytes > 0 && body.disk_used_bytes < body.disk_size_bytes);
});
await check("logs", async () => {
  const { status, body } = await call("GET", `/databases/${db.id}/logs?lines=5`);
  assert.equal(status, 200, JSON.stringify(body));
  assert.equal(typeof body.logs, "string");
  assert.ok(body.logs.split("\n").length <= 6);
});
await check("metrics", async () => {
  const { status, body } = await call("GET", `/databases/${db.id}/metrics?range=24h&bucket=5m`);
  assert.deepEqual([status, body.range, body.bucket, body.bucket_seconds], [200, "24h", "5m", 300]);
  assert.equal(body.empty, body.points.length === 0);
});
await check("insights", async () => {
  const { status, body } = await call("GET", `/databases/${db.id}/insights`);
  assert.equal(status, 200, JSON.stringify(body));
  assert.ok(body.top_queries.length > 0 && body.connections.max > 10);
});
await check("databases.failover of a healthy database is refused", async () => {
  await assert.rejects(() => databases.failover(db.id), (e) => e instanceof PandaStackError && [409, 412, 501, 503].includes(e.statusCode));
});
await check("suspend, and databases.wake", async () => {
  assert.equal((await call("POST", `/databases/${db.id}/suspend`)).status, 200);
  assert.equal((await databases.get(db.id)).status, "hibernated");
  assert.equal((await call("GET", `/databases/${db.id}/stats`)).status, 409);
  assert.equal((await databases.wake(db.id)).status, "waking");
  assert.equal((await databases.waitUntilReady(db.id)).status, "running");
  assert.deepEqual((await query(db, "SELECT n FROM t")).body.rows, [[7]]);
});
await check("databases.resetCredentials", async () => {
  const old = db;
  db = await databases.resetCredentials(db.id);
  assert.ok(db.password && db.password !== old.password && db.broker_token !== old.broker_token);
  assert.equal((await query(old, "SELECT 1")).status, 401);
  assert.equal((await query(db, "SELECT 1")).status, 200);
});
await check("databases.clone", async () => {
  const copy = await databases.clone(db.id, { label: "sdk-js-copy" });
  assert.deepEqual([copy.status, copy.cloned_from], ["running", db.id]);
  assert.notEqual(copy.password, db.password);
  assert.deepEqual((await query(copy, "SELECT n FROM t")).body.rows, [[7]]);
  assert.equal((await query(copy, "SELECT 1", db.broker_token)).status, 401);
  await databases.delete(copy.id);
});
await check("databases.delete", async () => {
  await databases.delete(db.id);
  await assert.rejects(() => databases.get(db.id), NotFoundError);
  assert.equal((await query(db, "SELECT 1")).status, 401);
});
exit();
