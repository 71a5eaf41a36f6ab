// Drives a node with the published command line of E2B, as a person or a script would.
//
// Usage: node cli.mjs, with E2B_API_KEY and E2B_DOMAIN set and the command line installed
// below the working directory.
import { strict as assert } from "node:assert";
import { spawn } from "node:child_process";
import { finish, operation, until } from "./lib.mjs";

const program = "node_modules/@e2b/cli/dist/index.js";

// start begins a command; its end is awaited by done.
function start(...args) {
  return begin(process.execPath, [program, ...args]);
}

function begin(name, args) {
  const child = spawn(name, args, { stdio: ["pipe", "pipe", "pipe"], env: { ...process.env, CI: "1", FORCE_COLOR: "0" } });
  const r = { child, stdout: "", stderr: "" };
  child.stdout.on("data", (d) => { r.stdout += d; });
  child.stderr.on("data", (d) => { r.stderr += d; });
  r.done = new Promise((resolve) => child.on("close", (code) => resolve({ code, stdout: r.stdout, stderr: r.stderr })));
  return r;
}

// run gives a command its whole input and waits for its end.
function run(input, ...args) {
  const r = start(...args);
  r.child.stdin.end(input);
  return r.done;
}

// terminal begins a command as a person does, at a terminal.
function terminal(...args) {
  return begin("script", ["-qec", [process.execPath, program, ...args].join(" "), "/dev/null"]);
}

async function well(...args) {
  const r = await run("", ...args);
  assert.equal(r.code, 0, JSON.stringify(r));
  return r.stdout;
}

let id;
await operation("sandbox create --detach", async () => {
  const out = await well("sandbox", "create", "--detach", "--timeout", "600", "base");
  id = /\b(sbx[a-z0-9]{10,})\b/.exec(out)?.[1];
  assert.ok(id, out);
});
if (!id) finish();

const listed = async (...args) => JSON.parse(await well("sandbox", "list", "--format", "json", ...args)).map((s) => s.sandboxId);

await operation("sandbox list", async () => {
  assert.ok((await listed()).includes(id));
  assert.ok((await well("sandbox", "list")).includes(id));
  assert.deepEqual(await listed("--metadata", "nobody=has"), []);
});
await operation("sandbox info", async () => assert.ok((await well("sandbox", "info", id)).includes(id)));
await operation("sandbox exec", async () => {
  assert.equal(await well("sandbox", "exec", id, "echo", "out"), "out\n");
});
await operation("sandbox exec: user, directory, environment", async () => {
  assert.equal(await well("sandbox", "exec", "-u", "root", "-c", "/tmp", "-e", "A=b", id, "echo $(id -u) $PWD $A"), "0 /tmp b\n");
});
await operation("sandbox exec: exit code and both outputs", async () => {
  const r = await run("", "sandbox", "exec", id, "echo out; echo err >&2; exit 7");
  assert.deepEqual([r.code, r.stdout, r.stderr.split("\n")[0]], [7, "out\n", "err"]);
});
await operation("sandbox exec: input from a pipe", async () => {
  const r = await run("piped\n", "sandbox", "exec", id, "wc -c");
  assert.deepEqual([r.code, r.stdout.trim()], [0, "6"]);
});
await operation("sandbox exec --background", async () => {
  await well("sandbox", "exec", "--background", id, "echo left > /tmp/left");
  await until("what it left", async () => (await run("", "sandbox", "exec", id, "cat /tmp/left")).stdout === "left\n");
});
await operation("sandbox connect", async () => {
  const r = terminal("sandbox", "connect", id);
  await until("a prompt", () => r.stdout.includes("$ "));
  r.child.stdin.write("echo at-$((6*7))\n");
  await until("the terminal's answer", () => r.stdout.includes("at-42"));
  r.child.stdin.write("exit\n");
  await until("the end of the terminal", () => r.child.exitCode !== null || /[Cc]losing|[Dd]isconnect/.test(r.stdout));
  r.child.kill();
  await r.done;
  assert.ok((await listed()).includes(id), "the sandbox is gone with the terminal");
});
await operation("sandbox metrics, logs", async () => {
  await well("sandbox", "metrics", id);
  await well("sandbox", "logs", id);
});
await operation("sandbox pause, resume", async () => {
  await well("sandbox", "pause", id);
  assert.ok((await listed("--state", "paused")).includes(id));
  await well("sandbox", "resume", id);
  assert.equal(await well("sandbox", "exec", id, "cat /tmp/left"), "left\n");
});
await operation("sandbox kill", async () => {
  await well("sandbox", "kill", id);
  assert.ok(!(await listed()).includes(id));
  const r = await run("", "sandbox", "exec", id, "true");
  assert.notEqual(r.code, 0);
});
finish();
