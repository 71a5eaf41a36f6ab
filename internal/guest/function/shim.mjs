// Loads a handler in JavaScript or TypeScript and calls it. The program around it speaks frames over a Unix socket.

import { AsyncLocalStorage } from 'node:async_hooks';
import crypto from 'node:crypto';
import fs from 'node:fs';
import module from 'node:module';
import net from 'node:net';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const LISTENER = 3;
const LOGS = 4;
const RECORD = 4096 - 7;
const PIECE = 128 << 10;
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'];

const calls = new AsyncLocalStorage();

// Output

function pause() {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
}

function record(stream, number, data) {
  for (let at = 0; at < data.length; at += RECORD) {
    const piece = data.subarray(at, at + RECORD);
    const all = Buffer.allocUnsafe(7 + piece.length);
    all[0] = stream;
    all.writeUInt32BE(number, 1);
    all.writeUInt16BE(piece.length, 5);
    piece.copy(all, 7);
    for (;;) {
      try {
        fs.writeSync(LOGS, all);
        break;
      } catch (error) {
        if (error.code !== 'EAGAIN') throw error;
        pause();
      }
    }
  }
}

function capture(out, stream) {
  out.write = (chunk, encoding, callback) => {
    if (typeof encoding === 'function') [encoding, callback] = [undefined, encoding];
    const data = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : Buffer.from(chunk);
    record(stream, calls.getStore()?.number ?? 0, data);
    if (callback) process.nextTick(callback);
    return true;
  };
}

// Failures

class Unusable extends Error {
  constructor(type, message) {
    super(message);
    this.type = type;
  }
}

function failure(error) {
  if (error instanceof Unusable) return { type: error.type, message: error.message };
  if (!(error instanceof Error)) {
    let message;
    try {
      message = typeof error === 'string' ? error : (JSON.stringify(error) ?? String(error));
    } catch {
      message = String(error);
    }
    return { type: 'Error', message: message.slice(0, 8000) };
  }
  let stack = String(error.stack ?? '');
  for (let cause = error.cause, n = 0; cause instanceof Error && n < 5; cause = cause.cause, n++) {
    stack += `\nCaused by: ${cause.stack}`;
  }
  const type = String(error.name && error.name !== 'Error' ? error.name : (error.constructor?.name ?? 'Error'));
  return { type, message: String(error.message).slice(0, 8000), stack: stack.slice(0, 60000) };
}

// Loading

function typescript() {
  // Imports of TypeScript name the files that a compiler would write, or no extension at all.
  const candidates = (name) => [
    name.replace(/\.([cm]?)js$/, '.$1ts'), `${name}.ts`, `${name}.mts`, `${name}.js`, `${name}/index.ts`,
  ];
  module.registerHooks?.({
    resolve(specifier, context, next) {
      try {
        return next(specifier, context);
      } catch (error) {
        if (!/^\.\.?\//.test(specifier)) throw error;
        for (const name of candidates(specifier)) {
          try {
            return next(name, context);
          } catch {
            continue;
          }
        }
        throw error;
      }
    },
  });
}

async function load(file, name) {
  const source = fs.readFileSync(file, 'utf8');
  if (!name && !/\bexports?\b/.test(source)) return { style: 'script', kinds: ['script'] };
  if (/\.[cm]?ts$/.test(file)) typescript();
  process.argv[1] = file;
  const namespace = await import(pathToFileURL(file).href);
  return choose(namespace, name);
}

function member(root, dotted) {
  return dotted.split('.').reduce((value, part) => value?.[part], root);
}

function choose(namespace, name) {
  const base = namespace.default;
  // What a CommonJS module exports is the default export.
  const common = base?.__esModule ? base.default : base;
  const get = (key) => {
    for (const root of [namespace, base, common]) {
      const value = root?.[key];
      if (typeof value === 'function') return value.bind(root === namespace ? undefined : root);
    }
    return undefined;
  };
  if (name) {
    const value = member(namespace, name) ?? member(base, name);
    if (typeof value === 'function') return { style: 'event', kinds: ['event'], event: value };
    if (typeof value?.fetch === 'function') return fetchStyle(value.fetch.bind(value), get);
    throw new Unusable('Runtime.NoHandler', `there is no function ${name}`);
  }
  const event = get('handler') ?? get('main');
  if (event) return withOthers({ style: 'event', kinds: ['event'], event }, get);
  const whole = get('fetch');
  if (whole) return fetchStyle(whole, get);
  if (METHODS.some((method) => get(method))) return fetchStyle(byMethod(get), get);
  const isClass = typeof common === 'function' && /^class\b/.test(Function.prototype.toString.call(common));
  if (typeof common === 'function' && !isClass) {
    return withOthers({ style: 'event', kinds: ['event'], event: common }, get);
  }
  if (get('scheduled') || get('queue')) return withOthers({ style: 'fetch', kinds: [] }, get);
  throw new Unusable('Runtime.NoHandler',
    'the module exports none of handler, main, fetch, a default function, scheduled, queue or the methods of HTTP');
}

function withOthers(handlers, get) {
  for (const kind of ['scheduled', 'queue']) {
    const f = get(kind);
    if (f) {
      handlers[kind] = f;
      handlers.kinds.push(kind);
    }
  }
  return handlers;
}

function fetchStyle(fetch, get) {
  return withOthers({ style: 'fetch', kinds: ['http'], fetch }, get);
}

function byMethod(get) {
  return async (request, env, context) => {
    const f = get(request.method) ?? (request.method === 'HEAD' ? get('GET') : undefined);
    if (f) return f(request, context, env);
    const allow = METHODS.filter((method) => get(method)).join(', ');
    return new Response('method not allowed\n', { status: 405, headers: { allow } });
  };
}

// Calls

class Context {
  #end;
  #waiting = [];
  constructor(start) {
    this.invocationId = this.awsRequestId = start.id;
    this.attempt = start.attempt ?? 1;
    this.#end = start.remaining ? performance.now() + start.remaining : Infinity;
    this.deadline = start.remaining ? Date.now() + start.remaining : undefined;
    this.traceparent = start.trace ?? '';
    this.scheduledTime = start.scheduled ?? '';
    this.queue = start.queue ?? '';
    this.functionName = process.env.PANDASTACK_FUNCTION_NAME ?? '';
    this.functionVersion = process.env.PANDASTACK_FUNCTION_VERSION ?? '';
    this.memoryLimitInMB = process.env.PANDASTACK_FUNCTION_MEMORY_MB ?? '';
    this.invokedFunctionArn = `arn:pandastack:function:${this.functionName}`;
    this.logGroupName = this.logStreamName = this.functionName;
    this.callbackWaitsForEmptyEventLoop = false;
    this.waitUntil = (promise) => void this.#waiting.push(Promise.resolve(promise));
    this.passThroughOnException = () => {};
  }
  get remainingMs() {
    return this.getRemainingTimeInMillis();
  }
  getRemainingTimeInMillis() {
    return this.#end === Infinity ? 2 ** 31 - 1 : Math.max(0, Math.floor(this.#end - performance.now()));
  }
  // settled waits for what the handler has passed to waitUntil.
  async settled() {
    while (this.#waiting.length > 0) await this.#waiting.shift();
  }
}

function frame(kind, data = Buffer.alloc(0)) {
  const header = Buffer.allocUnsafe(5);
  header.write(kind, 0, 'latin1');
  header.writeUInt32BE(data.length, 1);
  return Buffer.concat([header, data]);
}

// Connection reads the frames of a call and writes those of its reply.
class Connection {
  #socket;
  #waiting;
  #frames = [];
  #rest = Buffer.alloc(0);
  #ended = false;
  gone = new AbortController();

  constructor(socket) {
    this.#socket = socket;
    socket.on('data', (data) => this.#add(data));
    socket.on('error', () => {});
    socket.on('end', () => this.#end());
    socket.on('close', () => this.#end());
  }

  #add(data) {
    this.#rest = this.#rest.length > 0 ? Buffer.concat([this.#rest, data]) : data;
    while (this.#rest.length >= 5) {
      const size = this.#rest.readUInt32BE(1);
      if (this.#rest.length < 5 + size) break;
      this.#frames.push([String.fromCharCode(this.#rest[0]), this.#rest.subarray(5, 5 + size)]);
      this.#rest = this.#rest.subarray(5 + size);
    }
    if (this.#frames.length > 16) this.#socket.pause();
    this.#wake();
  }

  #end() {
    if (this.#ended) return;
    this.#ended = true;
    this.gone.abort(new DOMException('the caller is gone', 'AbortError'));
    this.#wake();
  }

  #wake() {
    this.#waiting?.();
    this.#waiting = undefined;
  }

  async frame() {
    while (this.#frames.length === 0) {
      if (this.#ended) return [undefined];
      this.#socket.resume();
      await new Promise((resolve) => (this.#waiting = resolve));
    }
    return this.#frames.shift();
  }

  async whole() {
    const all = [];
    for (;;) {
      const [kind, data] = await this.frame();
      if (kind === 'E') return Buffer.concat(all);
      if (kind !== 'B') throw new Error('the caller is gone');
      all.push(data);
    }
  }

  async send(kind, data) {
    if (this.#ended) throw new Error('the caller is gone');
    if (!this.#socket.write(frame(kind, data))) {
      await Promise.race([
        new Promise((resolve) => this.#socket.once('drain', resolve)),
        new Promise((resolve) => this.#socket.once('close', resolve)),
      ]);
    }
  }

  async pieces(data) {
    for (let at = 0; at < data.length; at += PIECE) await this.send('D', data.subarray(at, at + PIECE));
  }

  head(status, headers) {
    return this.send('H', Buffer.from(JSON.stringify({ status, headers })));
  }

  close(fields) {
    const closed = new Promise((resolve) => this.#socket.once('close', resolve));
    this.done(fields);
    return closed;
  }

  done(fields) {
    if (!this.#ended) this.#socket.end(frame('X', Buffer.from(JSON.stringify(fields))));
  }
}

function encode(result) {
  let text;
  try {
    text = JSON.stringify(result === undefined ? null : result);
  } catch (error) {
    throw new Unusable('Runtime.InvalidResult', `the handler's result cannot be written as JSON: ${error.message}`);
  }
  if (text === undefined) {
    throw new Unusable('Runtime.InvalidResult',
      `the handler's result cannot be written as JSON: it is a ${typeof result}`);
  }
  return Buffer.from(text);
}

function withBinary(result) {
  const body = result?.body;
  if (body instanceof Uint8Array) {
    return { ...result, body: Buffer.from(body).toString('base64'), isBase64Encoded: true };
  }
  return result;
}

// invoke calls a handler of events, which may want a callback in place of returning a result.
function invoke(f, event, context) {
  if (f.length < 3) return f(event, context);
  return new Promise((resolve, reject) => {
    const callback = (error, result) => (error ? reject(error) : resolve(result));
    const returned = f(event, context, callback);
    if (typeof returned?.then === 'function') returned.then(resolve, reject);
  });
}

// In place of the handlers, in rehearsals. What they print is kept as output of their calls.
function rehearse(event) {
  console.log('rehearsal');
  return event;
}
const rehearsal = {
  event: async (event) => rehearse(event),
  scheduled: async (controller) => rehearse(controller.event),
  queue: async (batch) => void rehearse(batch),
  fetch: async (request) => {
    const headers = { 'content-type': 'application/json' };
    return new Response(rehearse(await request.text()), { headers });
  },
};

function batchOf(body) {
  const again = new Set();
  const messages = (body?.messages ?? []).map((message) => ({
    ...message,
    attempts: message.attempt,
    timestamp: new Date(message.created_at ?? Date.now()),
    ack: () => again.delete(message.id),
    retry: () => again.add(message.id),
  }));
  return {
    batch: {
      queue: body?.queue ?? '',
      messages,
      ackAll: () => again.clear(),
      retryAll: () => messages.forEach((message) => again.add(message.id)),
    },
    // Those that are to be delivered again: of a result in the form of AWS, or by the methods of the messages.
    result: (returned) => {
      for (const item of returned?.batchItemFailures ?? []) again.add(item.itemIdentifier);
      for (const id of returned?.failed ?? []) again.add(id);
      return { failed: [...again] };
    },
  };
}

async function runEvent(handlers, start, connection, context) {
  const event = JSON.parse((await connection.whole()).toString('utf8'));
  const env = { ...process.env };
  let result;
  if (start.kind === 'event') {
    result = await invoke(handlers.event, event, context);
  } else if (start.kind === 'scheduled') {
    const moment = new Date(start.scheduled);
    const controller = { type: 'scheduled', scheduledTime: moment.getTime(), cron: event?.cron ?? '', event };
    result = await handlers.scheduled(controller, env, context);
  } else {
    const { batch, result: ends } = batchOf(event);
    result = ends(await handlers.queue(batch, env, context));
  }
  const data = encode(withBinary(result));
  await context.settled();
  await connection.pieces(data);
}

function requestOf(start, connection) {
  const headers = new Headers();
  let proto = 'http';
  for (const [name, value] of start.headers ?? []) {
    headers.append(name, value);
    if (name.toLowerCase() === 'x-forwarded-proto' && value === 'https') proto = 'https';
  }
  const init = { method: start.method, headers, signal: connection.gone.signal };
  if (!['GET', 'HEAD'].includes(start.method)) {
    init.duplex = 'half';
    init.body = new ReadableStream({
      type: 'bytes',
      async pull(controller) {
        const [kind, data] = await connection.frame();
        if (kind === 'B') {
          controller.enqueue(new Uint8Array(data));
        } else if (kind === 'E') {
          controller.close();
          controller.byobRequest?.respond(0);
        } else {
          controller.error(new Error('the caller is gone'));
        }
      },
    });
  }
  return new Request(new URL(start.url, `${proto}://${start.host || 'localhost'}`), init);
}

async function runFetch(handlers, start, connection, context) {
  const response = await handlers.fetch(requestOf(start, connection), { ...process.env }, context);
  if (typeof response?.status !== 'number' || typeof response?.headers?.forEach !== 'function') {
    throw new Unusable('Runtime.InvalidResponse', `the handler returned ${typeof response} in place of a Response`);
  }
  const headers = [];
  response.headers.forEach((value, name) => name === 'set-cookie' || headers.push([name, value]));
  for (const cookie of response.headers.getSetCookie?.() ?? []) headers.push(['set-cookie', cookie]);
  await connection.head(response.status, headers);
  if (response.body) {
    const reader = response.body.getReader();
    const cancel = () => void reader.cancel(connection.gone.signal.reason).catch(() => {});
    connection.gone.signal.addEventListener('abort', cancel, { once: true });
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      await connection.pieces(Buffer.from(value.buffer, value.byteOffset, value.byteLength));
    }
  }
  await context.settled();
}

function restored(start) {
  const env = start.env ?? {};
  for (const name of variables) if (!(name in env)) delete process.env[name];
  Object.assign(process.env, env);
  variables = Object.keys(env);
  freshRandom();
}

// freshRandom takes random bytes from the kernel: the state of OpenSSL and of V8 may be that of another machine.
let fresh = false;
const pool = new Uint32Array(1024); // of Math.random
let used = pool.length;
function freshRandom() {
  used = pool.length; // another machine may have the same pool
  if (fresh) return;
  fresh = true;
  const source = fs.openSync('/dev/urandom', 'r');
  const fill = (view, offset = 0, size = view.byteLength - offset) => {
    const bytes = new Uint8Array(view.buffer ?? view, (view.byteOffset ?? 0) + offset, size);
    for (let n = 0; n < bytes.length;) n += fs.readSync(source, bytes, n, bytes.length - n, null);
    return view;
  };
  const bytes = (size, callback) => {
    const data = fill(Buffer.alloc(size));
    return callback ? void process.nextTick(callback, null, data) : data;
  };
  const uuid = () => {
    const b = bytes(16);
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    return b.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
  };
  crypto.randomBytes = crypto.pseudoRandomBytes = bytes;
  crypto.randomFillSync = fill;
  crypto.randomFill = (view, ...rest) => {
    const callback = rest.pop();
    process.nextTick(callback, null, fill(view, ...rest));
  };
  crypto.randomUUID = uuid;
  crypto.randomInt = (min, max, callback) => {
    if (max === undefined || typeof max === 'function') [min, max, callback] = [0, min, max];
    const range = max - min;
    if (!Number.isSafeInteger(min) || !Number.isSafeInteger(max) || range <= 0 || range > 2 ** 48 - 1) {
      throw new RangeError('randomInt takes safe integers with less than 2^48 between them');
    }
    const limit = 2 ** 48 - (2 ** 48 % range);
    let n;
    do n = bytes(6).readUIntBE(0, 6); while (n >= limit);
    return callback ? void process.nextTick(callback, null, min + (n % range)) : min + (n % range);
  };
  const web = globalThis.crypto;
  Object.defineProperties(web, {
    getRandomValues: { value: (view) => fill(view), configurable: true },
    randomUUID: { value: uuid, configurable: true },
  });
  module.syncBuiltinESMExports();
  Math.random = () => {
    if (used === pool.length) {
      fill(pool);
      used = 0;
    }
    const high = pool[used++] >>> 5;
    const low = pool[used++] >>> 6;
    return (high * 2 ** 26 + low) / 2 ** 53;
  };
}

async function serve(loaded, socket) {
  const connection = new Connection(socket);
  const [kind, data] = await connection.frame();
  if (kind !== 'S') return;
  const start = JSON.parse(data.toString('utf8'));
  const handlers = start.rehearsal ? rehearsal : loaded;
  await calls.run({ number: start.number }, async () => {
    if (start.kind === 'load') {
      connection.done({ style: handlers.style, handlers: handlers.kinds });
      return;
    }
    if (start.kind === 'restored') {
      restored(start);
      connection.done({});
      return;
    }
    const context = new Context(start);
    running.add(connection);
    try {
      if (start.kind === 'http') await runFetch(handlers, start, connection, context);
      else await runEvent(handlers, start, connection, context);
      connection.done({});
    } catch (error) {
      connection.done({ failure: failure(error) });
    } finally {
      running.delete(connection);
    }
  });
}

// An error that no handler catches, in a timer for example, ends all calls: whose it is cannot be known.
const running = new Set();
function uncaught(error) {
  if (process.listenerCount('uncaughtException') > 1) return;
  record(2, 0, Buffer.from(`Uncaught ${error?.stack ?? error}\n`));
  if (running.size === 0) process.exit(1);
  const ended = [...running].map((connection) => connection.close({ failure: failure(error), last: true }));
  Promise.all(ended).then(() => process.exit(1));
}

// refuse says why there is no handler to the one who waits for it.
function refuse(error) {
  net.createServer((socket) => {
    new Connection(socket).done({ failure: failure(error) });
    socket.on('close', () => process.exit(1));
  }).listen({ fd: LISTENER });
}

let variables = (process.env.PANDASTACK_VARIABLES ?? '').split(',').filter(Boolean);
delete process.env.PANDASTACK_VARIABLES;
capture(process.stdout, 1);
capture(process.stderr, 2);
process.on('SIGTERM', () => {});
process.on('uncaughtException', uncaught);
const [file, name] = process.argv.slice(2);
process.argv.splice(2);
try {
  const handlers = await load(path.resolve(file), name);
  net.createServer((socket) => void serve(handlers, socket)).listen({ fd: LISTENER });
} catch (error) {
  refuse(error);
}
