// Drives a node through the E2B sandbox of OpenAI's agents extensions: the session that an agent works in,
// without a model.
//
// Usage: node agents.mjs, with E2B_API_KEY and E2B_DOMAIN set.
import { strict as assert } from "node:assert";
import { E2BSandboxClient } from "@openai/agents-extensions/sandbox/e2b";
import { Manifest } from "@openai/agents/sandbox";
import { finish, operation } from "./lib.mjs";

const client = new E2BSandboxClient({ sandboxType: "e2b", template: "base", timeout: 600 });
let session;
await operation("create", async () => {
  session = await client.create({
    manifest: new Manifest({ root: "/home/user/desk", entries: { "notes.txt": { type: "file", content: "from the manifest" } } }),
    options: { template: "base", timeout: 600 },
  });
});
if (!session) finish();
await operation("exec", async () => {
  const r = await session.execCommand({ cmd: "cat notes.txt; pwd" });
  assert.match(r, /from the manifest/);
  assert.match(r, /\/home\/user\/desk/);
});
await operation("write and read files", async () => {
  const editor = session.createEditor();
  await editor.createFile({ type: "create_file", path: "made.txt", diff: "+made\n" });
  assert.match(await session.execCommand({ cmd: "cat made.txt" }), /made/);
  assert.equal(await session.pathExists("made.txt"), true);
});
await operation("terminal", async () => {
  assert.equal(session.supportsPty(), true);
  const r = await session.execCommand({ cmd: "echo at-$((6*7))", tty: true, yieldTimeMs: 30_000 });
  assert.match(r, /at-42/);
});
await operation("exposed port", async () => {
  const p = await session.resolveExposedPort(3000).catch((e) => e);
  assert.ok(p);
});
await operation("keep and restore the workspace", async () => {
  const tar = await session.persistWorkspace();
  assert.ok(tar.length > 512);
  await session.execCommand({ cmd: "rm -f notes.txt" });
  await session.hydrateWorkspace(tar);
  assert.match(await session.execCommand({ cmd: "cat notes.txt" }), /from the manifest/);
});
await operation("close", async () => {
  const id = session.state.sandboxId;
  await session.close();
  const { Sandbox } = await import("e2b");
  assert.equal(await Sandbox.kill(id), false);
});
finish();
