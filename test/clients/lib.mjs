// What the scenarios of published clients share: an operation is run and told as one line of JSON,
// {"operation", "ok", "ms", "error"?}, and the process ends with 1 when one failed.
let failed = 0;

// operation runs one step of a scenario and tells how it went; the next one runs all the same.
export async function operation(name, run) {
  const began = Date.now();
  try {
    await run();
    console.log(JSON.stringify({ operation: name, ok: true, ms: Date.now() - began }));
  } catch (e) {
    failed++;
    console.log(JSON.stringify({ operation: name, ok: false, ms: Date.now() - began, error: String((e && e.stack) || e).slice(0, 2000) }));
  }
}

// until waits for a condition. A check that throws did not find it yet.
export async function until(what, check) {
  const end = Date.now() + 60_000;
  for (;;) {
    let why = "";
    try {
      if (await check()) return;
    } catch (e) {
      why = ": " + ((e && e.stack) || e);
    }
    if (Date.now() > end) throw new Error("waited a minute for " + what + why);
    await new Promise((r) => setTimeout(r, 50));
  }
}

// finish ends the process.
export function finish() {
  process.exit(failed ? 1 : 0);
}
