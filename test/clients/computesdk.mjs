// Drives a node through ComputeSDK's provider for E2B.
//
// Usage: node computesdk.mjs, with E2B_API_KEY and E2B_DOMAIN set.
import { strict as assert } from "node:assert";
import { e2b } from "@computesdk/e2b";
import { finish, operation } from "./lib.mjs";

const provider = e2b({ apiKey: process.env.E2B_API_KEY, timeout: 600_000 });

let box;
await operation("sandbox.create", async () => {
  box = await provider.sandbox.create({ metadata: { suite: "computesdk" } });
  assert.match(box.sandboxId, /^[a-z0-9]+$/);
});
if (!box) finish();
await operation("sandbox.list, getById", async () => {
  assert.ok((await provider.sandbox.list()).some((s) => s.sandboxId === box.sandboxId));
  assert.equal((await provider.sandbox.getById(box.sandboxId)).sandboxId, box.sandboxId);
});
await operation("runCommand", async () => {
  const r = await box.runCommand("echo out; echo err >&2; exit 3");
  assert.deepEqual([r.stdout, r.stderr, r.exitCode], ["out\n", "err\n", 3]);
});
await operation("runCommand: environment and directory", async () => {
  const r = await box.runCommand("sh -c 'echo $A; pwd'", { env: { A: "b" }, cwd: "/tmp" });
  assert.equal(r.stdout.split("\n")[1], "/tmp");
});
await operation("filesystem", async () => {
  await box.filesystem.mkdir("/home/user/d");
  await box.filesystem.writeFile("/home/user/d/f.txt", "grüße");
  assert.equal(await box.filesystem.readFile("/home/user/d/f.txt"), "grüße");
  assert.ok((await box.filesystem.readdir("/home/user/d")).some((e) => e.name === "f.txt"));
  assert.equal(await box.filesystem.exists("/home/user/d/f.txt"), true);
  await box.filesystem.remove("/home/user/d/f.txt");
  assert.equal(await box.filesystem.exists("/home/user/d/f.txt"), false);
});
await operation("getUrl", async () => assert.match(await box.getUrl({ port: 3000 }), new RegExp("^https://3000-" + box.sandboxId)));
await operation("snapshot.create", async () => {
  const snap = await provider.snapshot.create(box.sandboxId, {});
  const copy = await provider.sandbox.create({ snapshotId: snap.id });
  assert.equal((await copy.runCommand("ls -d /home/user/d")).stdout, "/home/user/d\n");
  await copy.destroy();
});
await operation("destroy", async () => {
  await box.destroy();
  assert.ok(!(await provider.sandbox.list()).some((s) => s.sandboxId === box.sandboxId));
});
finish();
