// Drives the npm package pg through the edge: pg.mjs HOST PORT USER PASSWORD CAFILE. Prints "ok NAME" for each operation.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import pg from "pg";

const [servername, port, user, password, caFile] = process.argv.slice(2);
const config = {
	host: "127.0.0.1", port: Number(port), user, password, database: user,
	ssl: { servername, ca: readFileSync(caFile) },
};
const ok = (name) => console.log("ok", name);

const client = new pg.Client(config);
await client.connect();
assert.equal((await client.query("select $1::int as n", [7])).rows[0].n, 7);
ok("pg queries");
for (let i = 0; i < 3; i++) {
	const r = await client.query({ name: "named", text: "select $1::text as t", values: [`x${i}`] });
	assert.equal(r.rows[0].t, `x${i}`);
}
ok("pg prepares statements");
await client.query("begin");
await client.query("create temp table t (a int)");
await client.query("rollback");
await assert.rejects(client.query("select * from t"), { code: "42P01" });
ok("pg sees errors of the database");
await client.end();

const pool = new pg.Pool({ ...config, max: 5 });
const rows = await Promise.all([...Array(50).keys()].map((i) => pool.query("select $1::int as n", [i])));
assert.deepEqual(rows.map((r) => r.rows[0].n), [...Array(50).keys()]);
await pool.end();
ok("pg pools");

await assert.rejects(new pg.Client({ ...config, password: "wrong" }).connect(), { code: "28P01" });
ok("pg sees a wrong password");

const bound = new pg.Client({ ...config, enableChannelBinding: true });
await bound.connect();
assert.equal((await bound.query("select 1 as n")).rows[0].n, 1);
await bound.end();
ok("pg with channel binding");
