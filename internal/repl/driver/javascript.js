// Runs cells of code for a stateful context. Requests come as lines of JSON on standard input, answers go
// as lines of JSON to file descriptor 1; what cells print through console and process comes back as
// answers. SIGINT interrupts the cell that runs and nothing else.
"use strict";
const fs = require("fs"), vm = require("vm"), util = require("util"), path = require("path");
const { createRequire } = require("module");
const channel = 1; // not opened anew: the pipe may belong to another user
let current = null, count = 0;
function send(type, fields) {
  let data = Buffer.from(JSON.stringify({ ...fields, id: current, type }) + "\n");
  while (data.length) {
    try { data = data.subarray(fs.writeSync(channel, data)); } catch (e) { if (e.code !== "EAGAIN") throw e; }
  }
}
for (const [stream, kind] of [[process.stdout, "stdout"], [process.stderr, "stderr"]]) {
  const decoder = new (require("string_decoder").StringDecoder)("utf8");
  stream.write = (chunk, encoding, done) => {
    const text = typeof chunk === "string" ? chunk : decoder.write(Buffer.from(chunk));
    if (text) send(kind, { text });
    const cb = typeof encoding === "function" ? encoding : done;
    if (cb) process.nextTick(cb);
    return true;
  };
}
globalThis.require = createRequire(path.join(process.cwd(), "cell.js"));
globalThis.display = (value) => { send("result", { data: bundle(value), main: false }); };
function bundle(value) {
  const out = { "text/plain": typeof value === "string" ? value : util.inspect(value, { depth: 4 }) };
  if (value && typeof value === "object") {
    for (const [kind, name] of [["text/html", "toHTML"], ["image/svg+xml", "toSVG"]]) {
      if (typeof value[name] === "function") { try { out[kind] = String(value[name]()); } catch { /* it has no such form then */ } }
    }
    try { const text = JSON.stringify(value); if (text !== undefined) out["application/json"] = JSON.parse(text); } catch { /* it has cycles: no JSON */ }
  }
  return out;
}
// Declarations of a cell with await are hoisted to the global object, so that later cells see them.
function hoist(source) {
  return source.replace(/^(\s*)(?:const|let|var)\s+([A-Za-z_$][\w$]*)\s*=/gm, "$1globalThis.$2 =")
    .replace(/^(\s*)(?:const|let|var)\s+(\{[^}]*\}|\[[^\]]*\])\s*=\s*([^;\n]+);?$/gm, (m, sp, names, value) => {
      const list = names.replace(/[{}[\]]/g, "").split(",").map((n) => n.split(":").pop().split("=")[0].trim()).filter(Boolean);
      return `${sp}var ${names} = ${value}; ${list.map((n) => `globalThis.${n} = ${n};`).join(" ")}`;
    })
    .replace(/^(\s*)(async\s+function\s*\*?|function\s*\*?|class)\s+([A-Za-z_$][\w$]*)/gm, "$1globalThis.$3 = $2 $3");
}
const AsyncFunction = (async () => {}).constructor;
function compile(source, filename) {
  try { return new vm.Script(source, { filename, importModuleDynamically: vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER }); } catch (e) {
    if (!(e instanceof SyntaxError) || !/\bawait\b/.test(source)) throw e;
  }
  const lines = hoist(source).trimEnd().split("\n");
  const body = lines.join("\n");
  const last = lines.pop();
  try { new AsyncFunction(`return (${last.replace(/;\s*$/, "")}\n)`); return new vm.Script(`(async () => { ${lines.join("\n")}\nreturn (${last.replace(/;\s*$/, "")}\n) })()`, { filename }); }
  catch { return new vm.Script(`(async () => { ${body}\n})()`, { filename }); }
}
async function handle(request) {
  current = request.id;
  send("count", { count: ++count });
  const saved = { ...process.env };
  Object.assign(process.env, request.env || {});
  let code = 0, stop;
  try {
    const script = compile(request.code, `cell${count}.js`);
    let value = script.runInThisContext({ breakOnSigint: true });
    if (value && typeof value.then === "function") {
      const interrupted = new Promise((_, reject) => { stop = () => reject(new Error("interrupted")); process.on("SIGINT", stop); });
      value = await Promise.race([value, interrupted]);
    }
    if (value !== undefined) send("result", { data: bundle(value), main: true });
  } catch (e) {
    code = 1;
    const err = e instanceof Error || (e && e.stack) ? e : new Error(util.inspect(e));
    send("error", { name: err.name || "Error", value: String(err.message), traceback: String(err.stack).split("\n    at ContextifyScript")[0].split("\n    at Script.runInThisContext")[0] });
  }
  if (stop) process.removeListener("SIGINT", stop);
  for (const key of Object.keys(request.env || {})) { if (key in saved) process.env[key] = saved[key]; else delete process.env[key]; }
  send("end", { code });
  current = null;
}
process.on("SIGINT", () => {});
process.on("uncaughtException", (e) => send("stderr", { text: String(e && e.stack || e) + "\n" }));
process.on("unhandledRejection", (e) => send("stderr", { text: String(e && e.stack || e) + "\n" }));
(async () => {
  for await (const line of require("readline").createInterface({ input: process.stdin, crlfDelay: Infinity })) await handle(JSON.parse(line));
  process.exit(0);
})();
