// Drives @neondatabase/serverless and Drizzle over it, unmodified: neon.mjs CONNECTION_STRING. Prints "ok NAME" for
// each operation. Node 20 has no WebSocket of its own, so the driver is given that of ws, as its documentation says.
import assert from "node:assert/strict";
import { Client, neon, neonConfig, Pool } from "@neondatabase/serverless";
import { drizzle } from "drizzle-orm/neon-http";
import { drizzle as drizzleServerless } from "drizzle-orm/neon-serverless";
import { eq } from "drizzle-orm";
import { integer, jsonb, pgTable, serial, text } from "drizzle-orm/pg-core";
import ws from "ws";

neonConfig.webSocketConstructor = ws;
const url = process.argv[2];
const sql = neon(url);
const ok = (name) => console.log("ok", name);

const [row] = await sql`select ${7}::int as n, ${"x"}::text as t, ${true}::bool as b, null as nothing, 1.5::float8 as f,
	9007199254740993::int8 as big, 1.10::numeric as num`;
assert.deepEqual(row, { n: 7, t: "x", b: true, nothing: null, f: 1.5, big: "9007199254740993", num: "1.10" });
ok("typed rows");
const [arrays] = await sql`select ${[1, 2, 3]}::int[] as a, ${["x", 'y"z\\', null]}::text[] as t`;
assert.deepEqual(arrays, { a: [1, 2, 3], t: ["x", 'y"z\\', null] });
ok("arrays");
const [json] = await sql`select ${{ a: [1, { b: null }] }}::jsonb as j`;
assert.deepEqual(json.j, { a: [1, { b: null }] });
ok("jsonb");
const [bytes] = await sql`select ${Buffer.from([0, 1, 255])}::bytea as b`;
assert.deepEqual([...bytes.b], [0, 1, 255]);
ok("bytea");
const when = new Date("2026-01-02T03:04:05.678Z");
assert.equal((await sql`select ${when}::timestamptz as t`)[0].t.getTime(), when.getTime());
ok("timestamptz");
const full = await neon(url, { fullResults: true, arrayMode: true })`select 1 as a, 2 as a`;
assert.equal(full.command, "SELECT");
assert.equal(full.rowCount, 1);
assert.deepEqual(full.rows, [[1, 2]]);
assert.deepEqual(full.fields.map((f) => [f.name, f.dataTypeID]), [["a", 23], ["a", 23]]);
ok("full results and array mode");
await sql`create table if not exists neon_t (id int primary key, body text)`;
const inserted = await sql.query("insert into neon_t values ($1, $2), ($3, $4)", [1, "a", 2, "b"], { fullResults: true });
assert.equal(inserted.command, "INSERT");
assert.equal(inserted.rowCount, 2);
ok("insert");
const results = await sql.transaction([sql`select count(*)::int as n from neon_t`, sql`show transaction_isolation`,
	sql`show transaction_read_only`], { isolationLevel: "Serializable", readOnly: true });
assert.deepEqual([results[0][0].n, results[1][0].transaction_isolation, results[2][0].transaction_read_only],
	[2, "serializable", "on"]);
ok("transaction with options");
await assert.rejects(sql.transaction([sql`insert into neon_t values (3, 'c')`, sql`insert into neon_t values (1, 'twice')`]),
	(e) => e.code === "23505" && e.table === "neon_t" && e.constraint === "neon_t_pkey");
assert.equal((await sql`select count(*)::int as n from neon_t`)[0].n, 2);
ok("transaction rolls back, with the fields of the error");
await assert.rejects(sql`selec 1`, (e) => e.code === "42601" && e.position === "1" && e.severity === "ERROR");
ok("syntax error with position");
await assert.rejects(neon(url.replace(/:[^:@]*@/, ":wrong@"))`select 1`,
	(e) => e.code === "28P01" && /password authentication failed for user/.test(e.message));
ok("wrong password");
await assert.rejects(neon(url.replace("@db1.", "@db2."))`select 1`, (e) => e.code === "28P01");
ok("unknown database");

const pool = new Pool({ connectionString: url });
assert.equal((await pool.query("select $1::int + 1 as n", [41])).rows[0].n, 42);
const client = await pool.connect();
await client.query("begin");
await client.query("insert into neon_t values (9, 'z')");
await client.query("rollback");
assert.equal((await client.query("select count(*)::int as n from neon_t")).rows[0].n, 2);
client.release();
await pool.end();
ok("pool with a transaction over a WebSocket");
const listener = new Client(url);
await listener.connect();
const heard = new Promise((resolve) => listener.on("notification", (m) => resolve(m.payload)));
await listener.query("listen news");
await sql`select pg_notify('news', 'hello')`;
assert.equal(await heard, "hello");
await listener.end();
ok("listen and notify over a WebSocket");
neonConfig.pipelineConnect = false;
const plain = new Client(url);
await plain.connect();
assert.equal((await plain.query("select 1 as n")).rows[0].n, 1);
await plain.end();
await assert.rejects(new Client(url.replace(/:[^:@]*@/, ":wrong@")).connect(), { code: "28P01" });
ok("a WebSocket without pipelined connect, and a wrong password");

const users = pgTable("drizzle_users", { id: serial("id").primaryKey(), name: text("name"), age: integer("age"),
	data: jsonb("data") });
await sql`create table if not exists drizzle_users (id serial primary key, name text, age int, data jsonb)`;
const db = drizzle({ client: sql });
const made = await db.insert(users).values([{ name: "a", age: 1, data: { x: [1] } }, { name: "b", age: 2 }]).returning();
assert.deepEqual(made.map((u) => [u.name, u.age, u.data]), [["a", 1, { x: [1] }], ["b", 2, null]]);
assert.equal((await db.select().from(users).where(eq(users.age, 2)))[0].name, "b");
ok("Drizzle neon-http");
await db.batch([db.update(users).set({ age: 3 }).where(eq(users.name, "a")), db.delete(users).where(eq(users.name, "b"))]);
assert.deepEqual((await db.select({ age: users.age }).from(users)).map((u) => u.age), [3]);
ok("Drizzle neon-http batch");
neonConfig.pipelineConnect = "password";
const sockets = new Pool({ connectionString: url });
await drizzleServerless({ client: sockets }).transaction(async (tx) => {
	await tx.insert(users).values({ name: "c", age: 9 });
	assert.equal((await tx.select().from(users)).length, 2);
});
await sockets.end();
ok("Drizzle neon-serverless");
