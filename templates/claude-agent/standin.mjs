// A stand-in for the API that Claude Managed Agents' workers speak to, for proofs without a network. It holds
// one environment with the items of work it is told, each a session that asks for one tool call and ends when
// the result has come. It checks credentials, the beta header and the order of a worker's calls.
//
//   standin.mjs FILE    listens on a free port of loopback, writes {"port":...} into FILE, and once every
//                       session has ended prints {"results":[...],"calls":[...]} and exits
import fs from 'node:fs';
import http from 'node:http';

const key = 'env-key';
const beta = 'managed-agents-2026-04-01';
const environment = 'env_standin';
const calls = [];
const results = [];

const items = ['1', '2'].map((n) => ({
  work: `work_${n}`, session: `sesn_${n}`, token: `token-${n}`, state: 'queued', stream: null,
  use: { id: `sevt_use_${n}`, type: 'agent.tool_use', name: 'bash', evaluated_permission: 'allow', processed_at: new Date().toISOString(),
    input: { command: `echo $((6 * 7)) > result-${n}.txt; cat result-${n}.txt; pwd` } },
}));

const secret = (i) => Buffer.from(JSON.stringify({ sessions_token: i.token })).toString('base64url');
const workOf = (i) => ({
  id: i.work, type: 'work', environment_id: environment, state: i.state, secret: secret(i), metadata: {}, data: { type: 'session', id: i.session },
  created_at: new Date().toISOString(), acknowledged_at: null, started_at: null, stop_requested_at: null, stopped_at: null, latest_heartbeat_at: null,
});

function sendEvent(i, event) {
  i.stream?.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
}

function takeResult(i, body) {
  for (const event of body.events ?? []) {
    if (event.type !== 'user.tool_result' || event.tool_use_id !== i.use.id) continue;
    const text = (event.content ?? []).map((c) => c.text ?? '').join('');
    results.push({ session: i.session, error: Boolean(event.is_error), text });
    sendEvent(i, { id: `sevt_end_${i.session}`, type: 'session.status_terminated', processed_at: new Date().toISOString() });
    i.stream?.end();
  }
}

const routes = [
  ['GET', /^\/v1\/environments\/(\w+)\/work\/poll$/, null, (i) => {
    const next = items.find((x) => x.state === 'queued');
    return next ? workOf(next) : null;
  }],
  ['POST', /^\/v1\/environments\/\w+\/work\/(\w+)\/ack$/, 'work', (i) => { i.state = 'starting'; return workOf(i); }],
  ['POST', /^\/v1\/environments\/\w+\/work\/(\w+)\/heartbeat$/, 'work', (i) => {
    if (i.state === 'starting') i.state = 'active';
    return { type: 'work_heartbeat', state: i.state, ttl_seconds: 30, last_heartbeat: new Date().toISOString(), lease_extended: true };
  }],
  ['POST', /^\/v1\/environments\/\w+\/work\/(\w+)\/stop$/, 'work', (i) => { i.state = 'stopped'; return workOf(i); }],
  ['GET', /^\/v1\/sessions\/(\w+)$/, 'session', (i) => ({
    id: i.session, type: 'session', status: 'running', environment_id: environment, resources: [], metadata: {}, title: null,
    agent: { id: 'agent_1', type: 'agent', version: 1, name: 'standin', skills: [], tools: [], mcp_servers: [] },
  })],
  ['GET', /^\/v1\/sessions\/(\w+)\/events$/, 'session', () => ({ data: [], next_page: null })],
  ['POST', /^\/v1\/sessions\/(\w+)\/events$/, 'session', (i, body) => { takeResult(i, body); return { data: body.events }; }],
];

function stream(i, res) {
  res.writeHead(200, { 'content-type': 'text/event-stream' });
  i.stream = res;
  sendEvent(i, i.use);
}

function answer(req, res, text) {
  const path = new URL(req.url, 'http://standin').pathname;
  calls.push(`${req.method} ${path}`);
  const token = (req.headers.authorization ?? '').replace(/^Bearer /, '');
  const reply = (status, body) => {
    res.writeHead(status, { 'content-type': 'application/json' });
    res.end(JSON.stringify(body));
  };
  const refuse = (status, type, message) => reply(status, { type: 'error', error: { type, message } });
  if (!(req.headers['anthropic-beta'] ?? '').includes(beta)) return refuse(400, 'invalid_request_error', 'the beta header is missing');
  const live = path.match(/^\/v1\/sessions\/(\w+)\/events\/stream$/);
  if (live) {
    const i = items.find((x) => x.session === live[1]);
    if (!i || token !== i.token) return refuse(401, 'authentication_error', 'wrong credential for a session');
    return stream(i, res);
  }
  for (const [method, form, kind, handle] of routes) {
    const found = req.method === method && path.match(form);
    if (!found) continue;
    const i = kind && items.find((x) => x[kind] === found[1]);
    if (kind && !i) return refuse(404, 'not_found_error', path);
    // Polling is the environment's; what belongs to an item is the item's own token's, or the environment's.
    if (token !== key && !(i && token === i.token)) return refuse(401, 'authentication_error', 'wrong credential');
    return reply(200, handle(i, text ? JSON.parse(text) : {}));
  }
  refuse(404, 'not_found_error', path);
}

const server = http.createServer((req, res) => {
  let text = '';
  req.on('data', (part) => { text += part; });
  req.on('end', () => {
    answer(req, res, text);
    if (items.every((i) => i.state === 'stopped') && results.length === items.length) {
      console.log(JSON.stringify({ results, calls }));
      res.once('finish', () => process.exit(0));
    }
  });
});
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address();
  fs.writeFileSync(process.argv[2] + '.new', JSON.stringify({ port }));
  fs.renameSync(process.argv[2] + '.new', process.argv[2]);
});
