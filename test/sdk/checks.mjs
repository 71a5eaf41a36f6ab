// What the scenarios of the TypeScript SDK have in common: the SDK, the lines that they print, and archives.
import { createRequire } from "node:module";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

export const require = createRequire(join(process.cwd(), "index.js"));
export const sdk = require("@pandastack/sdk");

let failed = 0;

// check runs fn and prints a line of JSON: {"name", "ok", "error"?}.
export async function check(name, fn) {
  try {
    await fn();
    console.log(JSON.stringify({ name, ok: true }));
  } catch (e) {
    failed++;
    console.log(JSON.stringify({ name, ok: false, error: String(e?.stack ?? e) }));
  }
}

// exit ends the scenario; its status is 1 if a check has failed.
export function exit() {
  process.exit(failed ? 1 : 0);
}

// tar returns a compressed archive with files of text.
export function tar(files) {
  const parts = [];
  for (const [name, text] of Object.entries(files)) {
    const data = Buffer.from(text);
    const h = Buffer.alloc(512);
    h.write(name, 0);
    h.write("0000644\0", 100);
    h.write("0000000\0", 108);
    h.write("0000000\0", 116);
    h.write(data.length.toString(8).padStart(11, "0") + "\0", 124);
    h.write("00000000000\0", 136);
    h.write("        ", 148);
    h.write("0", 156);
    h.write("ustar\x0000", 257);
    h.write(h.reduce((a, b) => a + b, 0).toString(8).padStart(6, "0") + "\0 ", 148);
    parts.push(h, data, Buffer.alloc((512 - (data.length % 512)) % 512));
  }
  return gzipSync(Buffer.concat([...parts, Buffer.alloc(1024)]));
}
