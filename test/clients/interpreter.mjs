// Drives a node with the published client of E2B's code interpreter.
//
// Usage: node interpreter.mjs, with E2B_API_KEY and E2B_DOMAIN set; and E2B_TESTS_PACKAGES, if the template that
// E2B_TESTS_TEMPLATE names lacks the packages that draw charts and show tables: a tar of them, which the sandbox
// is given as a user would.
import { strict as assert } from "node:assert";
import { Sandbox } from "@e2b/code-interpreter";
import { readFile } from "node:fs/promises";
import { finish, operation } from "./lib.mjs";

let sbx;
await operation("create", async () => {
  sbx = await Sandbox.create(process.env.E2B_TESTS_TEMPLATE || "code-interpreter-v1", { timeoutMs: 600_000 });
  if (!process.env.E2B_TESTS_PACKAGES) return;
  await sbx.files.write("/tmp/packages.tar", new Blob([await readFile(process.env.E2B_TESTS_PACKAGES)]));
  await sbx.commands.run("at=$(python3 -m site --user-site) && mkdir -p $at && tar -xf /tmp/packages.tar -C $at && rm /tmp/packages.tar", { timeoutMs: 300_000 });
});
if (!sbx) finish();

await operation("runCode: python, streamed, with a result", async () => {
  const out = [], errs = [], results = [];
  const e = await sbx.runCode("import sys\nprint('grüße 🐼')\nprint('oops', file=sys.stderr)\n6 * 7", {
    onStdout: (m) => { out.push(m.line); }, onStderr: (m) => { errs.push(m.line); }, onResult: (r) => { results.push(r); },
  });
  assert.equal(e.text, "42");
  assert.equal(e.logs.stdout.join(""), "grüße 🐼\n");
  assert.equal(out.join(""), "grüße 🐼\n");
  assert.equal(errs.join(""), "oops\n");
  assert.equal(results[0].isMainResult, true);
  assert.equal(e.error, undefined);
});
await operation("runCode: variables live on", async () => {
  await sbx.runCode("x = 1");
  await sbx.runCode("x += 1");
  assert.equal((await sbx.runCode("x")).text, "2");
});
await operation("runCode: an error has name, value and traceback", async () => {
  let told;
  const e = await sbx.runCode("def f():\n    return 1 / 0\nf()", { onError: (x) => { told = x; } });
  assert.equal(e.error.name, "ZeroDivisionError");
  assert.equal(e.error.value, "division by zero");
  assert.match(e.error.traceback, /line 2/);
  assert.equal(told.name, "ZeroDivisionError");
  assert.equal((await sbx.runCode("x")).text, "2");
});
await operation("runCode: a syntax error", async () => {
  assert.equal((await sbx.runCode("def")).error.name, "SyntaxError");
});
await operation("runCode: time over, the kernel lives", async () => {
  await assert.rejects(sbx.runCode("import time\ntime.sleep(60)", { timeoutMs: 2000 }));
  assert.equal((await sbx.runCode("x")).text, "2");
});
await operation("runCode: variables of the environment", async () => {
  assert.equal((await sbx.runCode("import os\nos.environ['A']", { envs: { A: "b" } })).text, "b");
});
await operation("runCode: bash", async () => {
  const e = await sbx.runCode("cd /tmp; v=1; echo $((6 * 7)); echo oops >&2", { language: "bash" });
  assert.equal(e.logs.stdout.join(""), "42\n");
  assert.equal(e.logs.stderr.join(""), "oops\n");
  assert.equal((await sbx.runCode("echo $v $PWD", { language: "bash" })).logs.stdout.join(""), "1 /tmp\n");
});
await operation("runCode: javascript", async () => {
  const e = await sbx.runCode("const a = 6; console.log('log'); a * 7", { language: "javascript" });
  assert.equal(e.logs.stdout.join(""), "log\n");
  assert.equal(e.text, "42");
});
await operation("contexts: python, of their own, in a directory", async () => {
  const one = await sbx.createCodeContext({ cwd: "/tmp" });
  assert.equal(one.cwd, "/tmp");
  assert.equal(one.language, "python");
  const two = await sbx.createCodeContext();
  assert.equal((await sbx.runCode("import os\nos.getcwd()", { context: one })).text, "/tmp");
  await sbx.runCode("y = 1", { context: one });
  assert.equal((await sbx.runCode("y", { context: two })).error.name, "NameError");
  assert.ok((await sbx.listCodeContexts()).some((c) => c.id === one.id));
  await sbx.restartCodeContext(one);
  assert.equal((await sbx.runCode("y", { context: one })).error.name, "NameError");
  await sbx.removeCodeContext(two);
  assert.ok(!(await sbx.listCodeContexts()).some((c) => c.id === two.id));
  await assert.rejects(sbx.runCode("1", { context: two }));
});
await operation("contexts: bash", async () => {
  const c = await sbx.createCodeContext({ language: "bash" });
  await sbx.runCode("f() { echo from f; }", { context: c });
  assert.equal((await sbx.runCode("f", { context: c })).logs.stdout.join(""), "from f\n");
});
await operation("results: html, markdown, svg, latex, json", async () => {
  const e = await sbx.runCode(`class T:
    def _repr_html_(self): return '<b>hi</b>'
    def _repr_markdown_(self): return '**hi**'
    def _repr_svg_(self): return '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': [1, 2]}
    def __repr__(self): return 'T!'
T()`);
  const r = e.results[0];
  assert.deepEqual([r.html, r.markdown, r.latex, r.text, r.json], ["<b>hi</b>", "**hi**", "$x$", "T!", { a: [1, 2] }]);
  assert.match(r.svg, /^<svg/);
});
await operation("images: a figure is a PNG", async () => {
  const e = await sbx.runCode("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6], label='a line')\nplt.title('grüß')\nplt.xlabel('x')\nplt.ylabel('y')\nplt.show()");
  assert.equal(e.error, undefined);
  const png = Buffer.from(e.results[0].png, "base64");
  assert.equal(png.subarray(1, 4).toString(), "PNG");
});
await operation("images: a picture of one's own", async () => {
  const e = await sbx.runCode("from PIL import Image\nImage.new('RGB', (4, 3), 'red')");
  assert.equal(e.error, undefined);
  assert.equal(Buffer.from(e.results[0].png, "base64").subarray(1, 4).toString(), "PNG");
});
await operation("charts: line", async () => {
  const e = await sbx.runCode("plt.plot([1, 2, 3], [4, 5, 6], label='a line')\nplt.title('grüß')\nplt.xlabel('x')\nplt.ylabel('y')\nplt.show()");
  const c = e.results[0].chart;
  assert.deepEqual([c.type, c.title, c.x_label, c.y_label], ["line", "grüß", "x", "y"]);
  assert.deepEqual(c.elements[0].points, [[1, 4], [2, 5], [3, 6]]);
  assert.equal(c.elements[0].label, "a line");
});
await operation("charts: scatter", async () => {
  const c = (await sbx.runCode("plt.scatter([1, 2], [3, 4])\nplt.show()")).results[0].chart;
  assert.equal(c.type, "scatter");
  assert.deepEqual(c.elements[0].points, [[1, 3], [2, 4]]);
});
await operation("charts: bar", async () => {
  const c = (await sbx.runCode("plt.bar(['a', 'b'], [1, 2])\nplt.show()")).results[0].chart;
  assert.equal(c.type, "bar");
  assert.deepEqual(c.elements.map((x) => [x.label, x.value]), [["a", 1], ["b", 2]]);
});
await operation("charts: pie", async () => {
  const c = (await sbx.runCode("plt.pie([1, 3], labels=['a', 'b'])\nplt.show()")).results[0].chart;
  assert.equal(c.type, "pie");
  assert.deepEqual(c.elements.map((x) => x.label), ["a", "b"]);
});
await operation("charts: box and whisker", async () => {
  const c = (await sbx.runCode("plt.boxplot([[1, 2, 3, 4, 10]])\nplt.show()")).results[0].chart;
  assert.equal(c.type, "box_and_whisker");
  assert.deepEqual([c.elements[0].label, c.elements[0].min, c.elements[0].median, c.elements[0].max], ["1", 1, 3, 4]);
});
await operation("charts: several in one figure", async () => {
  const c = (await sbx.runCode("fig, (a, b) = plt.subplots(1, 2)\na.plot([1, 2])\nb.bar(['x'], [1])\nplt.show()")).results[0].chart;
  assert.equal(c.type, "superchart");
  assert.deepEqual(c.elements.map((x) => x.type), ["line", "bar"]);
});
await operation("data frames", async () => {
  const r = (await sbx.runCode("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")).results[0];
  assert.deepEqual(r.data, { a: [1, 2], b: ["x", "y"] });
  assert.match(r.html, /<table/);
});
await operation("files and commands are those of the sandbox", async () => {
  await sbx.runCode("open('/home/user/made.txt', 'w').write('by code')");
  assert.equal(await sbx.files.read("made.txt"), "by code");
  assert.equal((await sbx.commands.run("id -un")).stdout, "user\n");
});
await operation("pause and connect: the kernel's variables are kept", async () => {
  await sbx.pause();
  const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 600_000 });
  assert.equal((await again.runCode("x")).text, "2");
});
await operation("kill", async () => {
  assert.equal(await sbx.kill(), true);
  await assert.rejects(sbx.runCode("1"));
});
finish();
