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
function show(data) { send("result", { data, main: false }); }
globalThis.display = (value) => show(bundle(value));
for (const [name, kind] of [["html", "text/html"], ["markdown", "text/markdown"], ["latex", "text/latex"], ["svg", "image/svg+xml"]]) {
  display[name] = (text) => show({ "text/plain": `<${kind}>`, [kind]: String(text) });
}
for (const [name, kind] of [["png", "image/png"], ["jpeg", "image/jpeg"]]) {
  display[name] = (bytes) => show(picture(kind, typeof bytes === "string" ? Buffer.from(bytes, "base64") : Buffer.from(bytes)));
}
for (const [name, kind] of [["json", "application/json"], ["chart", "application/vnd.pandastack.chart+json"]]) {
  display[name] = (value) => { const text = JSON.stringify(value); show({ "text/plain": text, [kind]: JSON.parse(text) }); };
}
function picture(kind, bytes) { return { "text/plain": `<${kind}, ${bytes.length} bytes>`, [kind]: bytes.toString("base64") }; }
// table is what rows of plain objects with plain values are shown as; nothing for anything else.
function table(rows) {
  if (!Array.isArray(rows) || rows.length === 0 || rows.length > 10000) return {};
  const data = {};
  for (const row of rows) {
    if (row === null || typeof row !== "object" || Object.getPrototypeOf(row) !== Object.prototype) return {};
    for (const [name, v] of Object.entries(row)) {
      if (v !== null && !["string", "number", "boolean", "undefined"].includes(typeof v)) return {};
      data[name] = [];
    }
  }
  const escape = (v) => String(v).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const names = Object.keys(data);
  let html = `<table><tr>${names.map((n) => `<th>${escape(n)}</th>`).join("")}</tr>`;
  for (const row of rows) {
    for (const n of names) data[n].push(row[n] ?? null);
    html += `<tr>${names.map((n) => `<td>${escape(row[n] ?? "")}</td>`).join("")}</tr>`;
  }
  return { "text/html": html + "</table>", "application/vnd.pandastack.data+json": data };
}
// own gives the forms that a value says it has, by the method that notebooks of this language ask for.
function own(value) {
  const form = value[Symbol.for("Jupyter.display")];
  if (typeof form !== "function") return;
  try {
    const out = JSON.parse(JSON.stringify(form.call(value)));
    if (out && typeof out === "object" && !Array.isArray(out)) return { "text/plain": util.inspect(value), ...out };
  } catch { /* it has no such form then */ }
}
function bundle(value) {
  if (value instanceof Uint8Array && value.length > 8) {
    const bytes = Buffer.from(value.buffer, value.byteOffset, value.length);
    if (bytes.subarray(0, 4).equals(Buffer.from([0x89, 0x50, 0x4e, 0x47]))) return picture("image/png", bytes);
    if (bytes.subarray(0, 3).equals(Buffer.from([0xff, 0xd8, 0xff]))) return picture("image/jpeg", bytes);
  }
  const given = value && typeof value === "object" ? own(value) : undefined;
  if (given) return given;
  const out = { "text/plain": typeof value === "string" ? value : util.inspect(value, { depth: 4 }) };
  if (value && typeof value === "object") {
    for (const [kind, name] of [["text/html", "toHTML"], ["image/svg+xml", "toSVG"]]) {
      if (typeof value[name] === "function") { try { out[kind] = String(value[name]()); } catch { /* it has no such form then */ } }
    }
    Object.assign(out, table(value));
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
// Static imports of a cell become dynamic ones, since a script has none: they start at a line's beginning.
function imports(source) {
  const from = (spec) => `await import(${JSON.stringify(spec.replace(/^npm:/, ""))})`;
  return source.replace(/^[ \t]*import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)|\{([^}]*)\})?\s*from\s*(["'])([^"'\n]+)\4[ \t]*;?/gm,
    (all, whole, space, names, _, spec) => {
      const list = (names || "").split(",").map((n) => n.trim()).filter(Boolean).map((n) => n.split(/\s+as\s+/));
      if (whole) list.unshift(["default", whole]);
      const set = list.map(([theirs, ours]) => `globalThis.${ours || theirs} = m[${JSON.stringify(theirs)}];`).join(" ");
      return `{ const m = ${from(spec)}; ${space ? `globalThis.${space} = m;` : ""} ${set} }`;
    }).replace(/^[ \t]*import\s*(["'])([^"'\n]+)\1[ \t]*;?/gm, (all, _, spec) => `${from(spec)};`);
}
const importModuleDynamically = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER || ((spec) => import(spec));
const AsyncFunction = (async () => {}).constructor;
// plain removes the types of TypeScript from a cell, if this release of Node.js can.
function plain(source) {
  const strip = require("module").stripTypeScriptTypes;
  try { return strip ? strip(source, { mode: "transform" }) : source; } catch { return source; }
}
function compile(source, filename) {
  try { return compilePlain(source, filename); } catch (e) {
    const other = e instanceof SyntaxError ? plain(source) : source;
    if (other === source) throw e;
    return compilePlain(other, filename);
  }
}
function compilePlain(source, filename) {
  try { return new vm.Script(source, { filename, importModuleDynamically }); } catch (e) {
    if (!(e instanceof SyntaxError) || !/\b(?:await|import)\b/.test(source)) throw e;
  }
  source = imports(source);
  const lines = hoist(source).trimEnd().split("\n");
  const body = lines.join("\n");
  const last = lines.pop();
  try { new AsyncFunction(`return (${last.replace(/;\s*$/, "")}\n)`); return new vm.Script(`(async () => { ${lines.join("\n")}\nreturn (${last.replace(/;\s*$/, "")}\n) })()`, { filename, importModuleDynamically }); }
  catch { return new vm.Script(`(async () => { ${body}\n})()`, { filename, importModuleDynamically }); }
}
// The variables of the sandbox, which is younger than a context that waited in its template.
let adopted = { owner: null, env: {} };
function adopt({ owner, defaults }) {
  if (!owner || !defaults || owner === adopted.owner) return;
  for (const [key, value] of Object.entries(defaults)) if (adopted.env[key] !== value) process.env[key] = value;
  adopted = { owner, env: defaults };
}
async function handle(request) {
  current = request.id;
  adopt(request);
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
// Cells do not choose that the driver uses what is experimental.
process.removeAllListeners("warning");
process.on("warning", (w) => { if (w.name !== "ExperimentalWarning") process.stderr.write(`${w.name}: ${w.message}\n`); });
send("ready", {}); // from here on a signal does not end it: the other side waits for something before it sends one
process.on("uncaughtException", (e) => send("stderr", { text: String(e && e.stack || e) + "\n" }));
process.on("unhandledRejection", (e) => send("stderr", { text: String(e && e.stack || e) + "\n" }));
(async () => {
  for await (const line of require("readline").createInterface({ input: process.stdin, crlfDelay: Infinity })) await handle(JSON.parse(line));
  process.exit(0);
})();
