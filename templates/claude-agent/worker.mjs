// The worker of a self-hosted environment of Claude Managed Agents: it carries out in this sandbox the tool
// calls of sessions that run elsewhere.
//
//   worker.mjs run    polls the environment for work until SIGTERM
//   worker.mjs item   handles the one item of work that ANTHROPIC_* in the environment name
//   worker.mjs wait   stays loaded and handles one item at a time for those who connect to its socket
//   worker.mjs hand   hands the item of its environment to the one that waits, and ends when it is done
//
// ANTHROPIC_BASE_URL, ANTHROPIC_ENVIRONMENT_ID, ANTHROPIC_ENVIRONMENT_KEY, ANTHROPIC_SESSION_ID,
// ANTHROPIC_WORK_ID and ANTHROPIC_WORK_SECRET are Anthropic's; WORKDIR is where tools work, and MAX_IDLE_MS
// how long a session may be idle before its item ends.
import fs from 'node:fs';
import net from 'node:net';

const socket = '/tmp/claude-agent.sock';
const maxRequest = 1 << 20;
const names = ['ANTHROPIC_BASE_URL', 'ANTHROPIC_ENVIRONMENT_ID', 'ANTHROPIC_ENVIRONMENT_KEY', 'ANTHROPIC_SESSION_ID',
  'ANTHROPIC_WORK_ID', 'ANTHROPIC_WORK_SECRET', 'WORKDIR', 'MAX_IDLE_MS'];

const pick = (env) => Object.fromEntries(names.filter((n) => env[n]).map((n) => [n, String(env[n])]));

async function worker(env) {
  const { default: Anthropic } = await import('@anthropic-ai/sdk');
  const key = env.ANTHROPIC_ENVIRONMENT_KEY;
  const client = new Anthropic({ baseURL: env.ANTHROPIC_BASE_URL || undefined, apiKey: null, authToken: key || null });
  return client.beta.environments.work.worker({
    environmentId: env.ANTHROPIC_ENVIRONMENT_ID,
    environmentKey: key,
    workdir: env.WORKDIR || process.cwd(),
    ...(env.MAX_IDLE_MS ? { maxIdleMs: Number(env.MAX_IDLE_MS) } : {}),
  });
}

async function item(env) {
  const w = await worker(env);
  await w.handleItem({
    workId: env.ANTHROPIC_WORK_ID, environmentId: env.ANTHROPIC_ENVIRONMENT_ID, sessionId: env.ANTHROPIC_SESSION_ID,
    environmentKey: env.ANTHROPIC_ENVIRONMENT_KEY, workSecret: env.ANTHROPIC_WORK_SECRET,
  });
}

async function run(env) {
  const stop = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => stop.abort());
  await (await worker(env)).run(stop.signal).catch((err) => {
    if (!stop.signal.aborted) throw err;
  });
}

// wait answers every connection: one line of JSON in, one line out. Items take turns.
async function wait() {
  await worker({ ANTHROPIC_ENVIRONMENT_KEY: 'none' }); // loads everything
  await import('@anthropic-ai/sdk/tools/agent-toolset/node');
  let turn = Promise.resolve();
  const server = net.createServer((conn) => {
    let text = '';
    conn.setEncoding('utf8');
    conn.on('error', () => {});
    conn.on('data', (part) => {
      text += part;
      if (text.length > maxRequest) return conn.destroy();
      if (!text.includes('\n')) return;
      conn.removeAllListeners('data');
      turn = turn.then(async () => {
        let answer = { ok: true };
        try {
          await item(pick(JSON.parse(text)));
        } catch (err) {
          answer = { ok: false, error: String(err?.message ?? err) };
        }
        conn.end(JSON.stringify(answer) + '\n');
      });
    });
  });
  fs.rmSync(socket, { force: true });
  await new Promise((done, fail) => server.once('error', fail).listen(socket, done));
}

async function hand(env) {
  const conn = net.connect(socket);
  conn.write(JSON.stringify(pick(env)) + '\n');
  let text = '';
  for await (const part of conn.setEncoding('utf8')) text += part;
  const answer = JSON.parse(text || '{"ok":false,"error":"the waiting worker has gone"}');
  if (!answer.ok) throw new Error(answer.error);
}

const modes = { run, item, wait, hand };
const mode = modes[process.argv[2]];
if (!mode) {
  console.error('usage: claude-worker run|item|wait|hand');
  process.exit(2);
}
mode(process.env).catch((err) => {
  console.error(err);
  process.exit(1);
});
