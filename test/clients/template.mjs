// Builds templates with the published builder of E2B: what a user of its Template does, on the small template.
import { strict as assert } from "node:assert";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as e2b from "e2b";
import { operation } from "./lib.mjs";

// buildTemplates runs the operations, for clients whose builder has them all.
export async function buildTemplates(Sandbox) {
  const { Template } = e2b;
  const name = "e2e-builder";
  const context = mkdtempSync(join(tmpdir(), "context"));
  writeFileSync(join(context, "app.txt"), "bamboo\n");
  const steps = () => Template({ fileContextPath: context }).fromTemplate("mini").setEnvs({ COLOR: "red" }).setWorkdir("/srv/app")
    .copy("app.txt", "copied.txt").runCmd("echo $COLOR $(cat copied.txt) > said", { user: "root" });
  const ready = e2b.waitForFile("/tmp/started");
  const built = async (template, options) => {
    const lines = [];
    const info = await Template.build(template, name, { cpuCount: 1, memoryMB: 256, onBuildLogs: (l) => lines.push(l.message), ...options });
    return { info, log: lines.join("\n") };
  };

  let first;
  await operation("Template.build: fromTemplate, setEnvs, setWorkdir, copy, runCmd, setStartCmd", async () => {
    first = await built(steps().setStartCmd("touch /tmp/started; sleep 100000", ready));
    assert.equal(first.info.name ?? name, name);
    assert.match(first.log, /is ready/);
  });
  if (!first) return;
  await operation("Template: a sandbox of it, in which the start command runs", async () => {
    const box = await Sandbox.create(name, { timeoutMs: 300_000 });
    try {
      const r = await box.commands.run("cat /srv/app/said; pgrep -f '[s]leep 100000' | wc -l; pwd");
      const [said, running, dir] = r.stdout.trim().split("\n");
      assert.equal(said, "red bamboo");
      assert.ok(Number(running) > 0, r.stdout);
      assert.equal(dir, "/srv/app");
    } finally {
      await box.kill();
    }
  });
  await operation("Template.exists, aliasExists", async () => {
    assert.equal(await Template.exists(name), true);
    assert.equal(await Template.aliasExists(name), true);
    assert.equal(await Template.exists("e2e-nothing"), false);
  });
  await operation("Template.assignTags, getTags, removeTags", async () => {
    await Template.assignTags(`${name}:default`, ["stable", "v1"]);
    const tags = (await Template.getTags(name)).map((t) => t.tag);
    assert.deepEqual(tags.filter((t) => t !== "default").sort(), ["stable", "v1"]);
    await Template.removeTags(name, "v1");
    assert.ok(!(await Template.getTags(name)).some((t) => t.tag === "v1"));
  });
  await operation("Template.buildInBackground, getBuildStatus: from layers, failing", async () => {
    const info = await Template.buildInBackground(steps().runCmd("echo why >&2; exit 3"), name, { cpuCount: 1, memoryMB: 256 });
    let status;
    for (const end = Date.now() + 120_000; Date.now() < end; await new Promise((r) => setTimeout(r, 200))) {
      status = await Template.getBuildStatus(info, { logsOffset: 0 });
      if (status.status === "error" || status.status === "ready") break;
    }
    assert.equal(status.status, "error");
    assert.match(status.reason.message, /why/);
    assert.ok(status.logEntries.some((l) => l.message === "cached"), JSON.stringify(status.logEntries));
  });
  await operation("Template.build: what is not there", async () => {
    await assert.rejects(Template.build(Template().fromTemplate("e2e-nothing").runCmd("true"), name, { cpuCount: 1, memoryMB: 256 }), /e2e-nothing/);
  });
}
