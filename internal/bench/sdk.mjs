// Measures commands through the published TypeScript SDK against a node. It reads PANDASTACK_API, PANDASTACK_API_KEY,
// BENCH_SANDBOX and BENCH_TIMES, and prints one line for each command: {"ms"} or {"error"}.
import { createRequire } from "node:module";

const { Client } = createRequire(import.meta.url)("@pandastack/sdk");
const box = await new Client().sandboxes.get(process.env.BENCH_SANDBOX);
for (let left = Number(process.env.BENCH_TIMES); left > 0; left--) {
  const began = performance.now();
  try {
    await box.exec("true", { check: true });
    console.log(JSON.stringify({ ms: performance.now() - began }));
  } catch (e) {
    console.log(JSON.stringify({ error: String(e) }));
  }
}
process.exit(0);
