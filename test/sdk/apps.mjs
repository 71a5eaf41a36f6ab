// Drives the apps of a server with the published TypeScript SDK, unmodified: every method. The files of the app are sent with a
// call of the API that the SDK lacks. It reads PANDASTACK_API and PANDASTACK_API_KEY and prints one line of JSON per check:
// {"name", "ok", "error"?}.
import { join } from "node:path";
import assert from "node:assert/strict";

import { check, exit, require, sdk, tar } from "./checks.mjs";

const { Client, NotFoundError, BadRequestError } = sdk;

const client = new Client();
const apps = client.apps;

const headers = { authorization: "Bearer " + process.env.PANDASTACK_API_KEY };
const call = (method, path, body) => fetch(process.env.PANDASTACK_API + "/v1" + path, { method, headers, body });

const program = (greeting) => `
const http = require("node:http");
http.createServer((q, r) => r.end(${JSON.stringify(greeting)} + " " + process.env.LEVEL + " " + q.url)).listen(process.env.PORT);
`;
const files = (greeting) => tar({ "server.js": program(greeting), "package.json": '{"name":"x","scripts":{"start":"node server.js"}}' });

// deploy sends files and deploys them; it returns the deployment when it has ended, and the lines of its log.
async function deploy(greeting) {
  const sent = await call("POST", `/apps/${app.id}/uploads`, files(greeting));
  assert.equal(sent.status, 201, await sent.clone().text());
  const begun = await call("POST", `/apps/${app.id}/deploys`, JSON.stringify({ upload: (await sent.json()).id }));
  assert.equal(begun.status, 202, await begun.clone().text());
  return ended(await begun.json());
}

async function ended(deployment) {
  const lines = [];
  for await (const line of apps.deployLogs(app.id, deployment.id)) lines.push(line);
  return { lines, deployment: await apps.deployment(app.id, deployment.id) };
}

const page = async (path) => (await call("GET", `/apps/${app.id}/proxy${path}`)).text();

let app;
const name = "sdk-js-" + Math.random().toString(36).slice(2, 8);
await check("apps.create", async () => {
  app = await apps.create({ name, framework: "node", start_command: "node server.js", port: 3000, env: { LEVEL: "debug" } });
  assert.match(app.id, /^app[a-z2-7]{20}$/);
  assert.deepEqual([app.name, app.status, app.port, app.env.LEVEL, app.is_preview], [name, "created", 3000, "debug", false]);
  assert.ok(app.url.includes(name) && Date.parse(app.created_at) > 0);
});
if (!app) process.exit(1);
await check("apps.create with what is not possible", async () => {
  await assert.rejects(() => apps.create({ name: "No Name", git_url: "https://git.example.com/a.git" }), BadRequestError);
  await assert.rejects(() => apps.create({ name: name + "-x", git_url: "file:///etc" }), BadRequestError);
});
await check("apps.list, get, update, previews", async () => {
  assert.ok((await apps.list()).some((a) => a.id === app.id));
  assert.equal((await apps.get(name)).id, app.id);
  assert.equal((await apps.update(app.id, { build_command: "true" })).build_command, "true");
  assert.equal((await apps.update(app.id, { build_command: "" })).build_command, "");
  assert.deepEqual(await apps.previews(), []);
  await assert.rejects(() => apps.get("app" + "a".repeat(20)), NotFoundError);
});
await check("apps.setEnv, listEnv, importEnv, unsetEnv", async () => {
  assert.deepEqual(await apps.setEnv(app.id, "TOKEN", "sesame", { secret: true }), { key: "TOKEN", secret: true, scope: "all" });
  assert.deepEqual(await apps.importEnv(app.id, 'A=1\n# comment\nB="two words"\n', { scope: "preview" }), { imported: 2, total: 4 });
  const env = Object.fromEntries((await apps.listEnv(app.id)).map((v) => [v.key, v]));
  assert.deepEqual([env.TOKEN.value, env.TOKEN.secret, env.B.value, env.B.scope], ["••••••••", true, "two words", "preview"]);
  await apps.unsetEnv(app.id, "A");
  assert.equal((await apps.listEnv(app.id)).length, 3);
});
let first;
await check("apps.deployLogs and deployment", async () => {
  const { lines, deployment } = await deploy("one");
  assert.equal(deployment.status, "live", JSON.stringify(deployment) + lines.slice(-20).join("\n"));
  assert.ok(lines.length > 0 && deployment.build_logs.includes(lines.at(-1).trim()));
  first = deployment;
  assert.equal(await page("/a?b"), "one debug /a?b");
  assert.deepEqual([(await apps.get(app.id)).status, (await apps.get(app.id)).active_deployment_id], ["running", first.id]);
});
await check("apps.deploy and deployments", async () => {
  await apps.setEnv(app.id, "LEVEL", "info");
  const { deployment } = await ended(await apps.deploy(app.id));
  assert.equal(deployment.status, "live", JSON.stringify(deployment));
  assert.equal(await page("/"), "one info /");
  const all = await apps.deployments(app.id);
  assert.deepEqual(all.map((d) => [d.id, d.status]), [[deployment.id, "live"], [first.id, "superseded"]]);
});
await check("apps.rollback", async () => {
  const back = await apps.rollback(app.id);
  assert.equal(back.id, first.id);
  assert.equal(await page("/"), "one debug /");
});
await check("apps.addDomain, listDomains, getDomain, removeDomain", async () => {
  const domain = name + ".example.com";
  const added = await apps.addDomain(app.id, domain);
  assert.deepEqual([added.domain, added.status, added.app_id], [domain, "pending", app.id]);
  assert.ok(added.records.some((r) => r.purpose === "verification" && r.type === "TXT"));
  assert.deepEqual((await apps.listDomains(app.id)).map((d) => d.domain), [domain]);
  assert.equal((await apps.getDomain(app.id, domain)).domain, domain);
  await apps.removeDomain(app.id, domain);
  await assert.rejects(() => apps.getDomain(app.id, domain), NotFoundError);
  await assert.rejects(() => apps.addDomain(app.id, "not a domain"), BadRequestError);
});
await check("apps.enablePreviewRepo, previewRepos, preview variables, disablePreviewRepo", async () => {
  const repo = 4_000_000_000 + Math.floor(Math.random() * 1e9);
  const on = await apps.enablePreviewRepo(repo, { repoFullName: "octo/app" });
  assert.deepEqual([on.github_repo_id, on.enabled], [repo, true]);
  assert.ok((await apps.previewRepos()).some((r) => r.github_repo_id === repo && r.enabled));
  assert.equal((await apps.setPreviewEnv(repo, "A", "1", { secret: true })).key, "A");
  assert.deepEqual((await apps.listPreviewEnv(repo)).map((v) => [v.key, v.value]), [["A", "••••••••"]]);
  assert.equal((await apps.importPreviewEnv(repo, "B=2")).imported, 1);
  await apps.unsetPreviewEnv(repo, "A");
  assert.equal((await apps.listPreviewEnv(repo)).length, 1);
  await apps.disablePreviewRepo(repo);
  assert.ok(!(await apps.previewRepos()).some((r) => r.github_repo_id === repo && r.enabled));
});
await check("apps.delete", async () => {
  await apps.delete(app.id);
  await assert.rejects(() => apps.get(app.id), NotFoundError);
});
exit();
