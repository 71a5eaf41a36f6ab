// Measures commands through E2B's published client against a node. It reads E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL,
// BENCH_SANDBOX and BENCH_TIMES, and prints one line for each command: {"ms"} or {"error"}.
import { Sandbox } from "e2b";

const box = await Sandbox.connect(process.env.BENCH_SANDBOX);
for (let left = Number(process.env.BENCH_TIMES); left > 0; left--) {
  const began = performance.now();
  try {
    await box.commands.run("true");
    console.log(JSON.stringify({ ms: performance.now() - began }));
  } catch (e) {
    console.log(JSON.stringify({ error: String(e) }));
  }
}
process.exit(0);
