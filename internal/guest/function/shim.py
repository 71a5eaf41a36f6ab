"""Loads a handler in Python and calls it. The program around it speaks frames over a Unix socket."""

import ast
import asyncio
import base64
import contextvars
import importlib.util
import inspect
import io
import json
import os
import queue
import random
import signal
import socket
import struct
import sys
import threading
import time
import traceback

LISTENER, LOGS = 3, 4
RECORD = 4096 - 7
PIECE = 128 << 10
THREADS = 64
EVENTS = ("handler", "lambda_handler", "main")
APPS = ("app", "application", "api", "asgi_app", "wsgi_app")

call_number = contextvars.ContextVar("pandastack_call", default=0)


# Output ----------------------------------------------------------------------------------------------------------------


class Output(io.RawIOBase):
    """A standard output whose bytes carry the number of the call that writes them."""

    def __init__(self, stream):
        self.stream = stream

    def writable(self):
        return True

    def fileno(self):
        return self.stream

    def isatty(self):
        return False

    def write(self, data):
        data = bytes(data)
        number = call_number.get()
        for at in range(0, len(data), RECORD):
            piece = data[at : at + RECORD]
            os.write(LOGS, struct.pack(">BIH", self.stream, number, len(piece)) + piece)
        return len(data)


def text(stream):
    return io.TextIOWrapper(Output(stream), encoding="utf-8", errors="backslashreplace", write_through=True)


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


# Failures --------------------------------------------------------------------------------------------------------------


class Unusable(Exception):
    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def failure(error):
    if isinstance(error, Unusable):
        return {"type": error.kind, "message": str(error)}
    here = os.path.abspath(__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename) != here]
    frames = [f for f in frames if not f.filename.startswith("<frozen importlib")]
    lines = ["Traceback (most recent call last):\n"] if frames else []
    lines += traceback.format_list(frames) + traceback.format_exception_only(type(error), error)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        lines += ["\nCaused by:\n"] + traceback.format_exception(type(cause), cause, cause.__traceback__)
    try:
        message = str(error)
    except Exception:
        message = ""
    return {"type": type(error).__name__, "message": message[:8000], "stack": "".join(lines)[:60000]}


def exited(error):
    code = error.code
    if code is None:
        code = 0
    elif not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    return {
        "failure": {
            "type": "Runtime.Exited",
            "message": f"the handler ended with sys.exit({code}) before there was a result",
            "stack": failure(error)["stack"],
        },
        "exit_code": code & 0xFF,
    }


# Loading ---------------------------------------------------------------------------------------------------------------


class Handlers:
    def __init__(self):
        self.style = "script"
        self.event = self.scheduled = self.queue = self.app = None

    @property
    def kinds(self):
        kinds = [k for k in ("event", "scheduled", "queue") if getattr(self, k)]
        return kinds + (["http"] if self.app else []) + (["script"] if self.style == "script" else [])

    @property
    def concurrent(self):
        """Whether calls run on the event loop of the main thread."""
        return self.style == "asgi" or any(is_async(f) for f in (self.event, self.scheduled, self.queue) if f)


def is_async(f):
    call = getattr(f, "__call__", None)
    return inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(call)


def is_asgi(app):
    if inspect.isclass(app):
        return False
    target = app if inspect.isroutine(app) else getattr(app, "__call__", app)
    while hasattr(target, "__wrapped__"):
        target = target.__wrapped__
    return inspect.iscoroutinefunction(target) or any("asgi" in c.__module__.split(".") for c in type(app).__mro__)


def positional(f):
    """How many arguments a callable takes by position; None: any number."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def is_wsgi(app):
    """Whether a callable takes an environment and a function to start the response."""
    try:
        names = [p.name for p in inspect.signature(app).parameters.values()]
    except (TypeError, ValueError):
        return False
    return len(names) >= 2 and "start_response" in names[1]


def bound_names(source, path):
    """The names that a file binds at its top, and whether it imports all names of another module."""
    names, everything = set(), False

    def target(node):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, (ast.Tuple, ast.List)):
            for element in node.elts:
                target(element)

    def visit(body):
        nonlocal everything
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                for t in node.targets:
                    target(t)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                target(node.target)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    everything = everything or alias.name == "*"
                    names.add(alias.asname or alias.name.split(".")[0])
            elif isinstance(node, ast.If) and not is_main_guard(node.test):
                visit(node.body)
                visit(node.orelse)
            elif isinstance(node, (ast.Try, ast.With)):
                visit(node.body)
                for handler in getattr(node, "handlers", []):
                    visit(handler.body)

    visit(ast.parse(source, path).body)
    return names, everything


def is_main_guard(test):
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(test))


def runs_itself(source, path):
    """Whether a file calls its function main when it is run: then main is no handler."""
    for node in ast.parse(source, path).body:
        if isinstance(node, ast.If) and is_main_guard(node.test):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            f = node.value.func
            if isinstance(f, ast.Name) and f.id == "main":
                return True
    return False


def load(path, name):
    handlers = Handlers()
    with open(path, "rb") as f:
        source = f.read()
    wanted = [name] if name else [*EVENTS, *APPS, "scheduled", "queue"]
    if not name:
        names, everything = bound_names(source, path)
        if runs_itself(source, path):
            wanted.remove("main")
        if not everything and not names.intersection(wanted):
            return handlers
    root = os.path.dirname(path)
    sys.path.insert(0, os.getcwd())
    if root != os.getcwd():
        sys.path.insert(0, root)
    module_name = os.path.splitext(os.path.basename(path))[0].replace("-", "_")
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return choose(handlers, module, name, wanted)


def choose(handlers, module, name, wanted):
    found = {}
    for n in wanted:
        value = module
        for part in n.split("."):
            value = getattr(value, part, None)
        if value is not None:
            found[n] = value
    if name:
        if name not in found:
            raise Unusable("Runtime.NoHandler", f"{module.__name__} has no object {name}")
        if not callable(found[name]):
            raise Unusable("Runtime.NoHandler", f"{name} in {module.__name__} cannot be called")
    callables = {n: v for n, v in found.items() if callable(v)}
    for n in ("scheduled", "queue"):
        if n in callables and not name:
            setattr(handlers, n, callables[n])
    for n in wanted:
        value = callables.get(n)
        if value is None or n in ("scheduled", "queue") and not name:
            continue
        if n in EVENTS or name and not web(value):
            handlers.style, handlers.event = "event", value
        else:
            handlers.style, handlers.app = ("asgi" if is_asgi(value) else "wsgi"), value
        return handlers
    if handlers.scheduled or handlers.queue:
        handlers.style = "event"
        return handlers
    raise Unusable("Runtime.NoHandler", f"none of {', '.join(wanted)} in {module.__name__} can be called")


def web(value):
    """Whether an object is an application of ASGI or WSGI, and not a handler of events."""
    if inspect.isroutine(value):
        return is_wsgi(value) or inspect.iscoroutinefunction(value) and positional(value) == 3
    return is_asgi(value) or is_wsgi(value) or is_wsgi(getattr(value, "__call__", value))


# Calls -----------------------------------------------------------------------------------------------------------------


class Context:
    """What a handler can know of its call."""

    def __init__(self, start):
        self.invocation_id = self.aws_request_id = start["id"]
        self.attempt = start.get("attempt", 1)
        remaining = start.get("remaining", 0)
        self.deadline = time.time() + remaining / 1000 if remaining else None
        self._end = time.monotonic() + remaining / 1000 if remaining else None
        self.traceparent = start.get("trace", "")
        self.scheduled_time = start.get("scheduled", "")
        self.queue = start.get("queue", "")
        self.function_name = os.environ.get("PANDASTACK_FUNCTION_NAME", "")
        self.function_version = os.environ.get("PANDASTACK_FUNCTION_VERSION", "")
        self.memory_limit_in_mb = int(os.environ.get("PANDASTACK_FUNCTION_MEMORY_MB") or 0)
        self.invoked_function_arn = "arn:pandastack:function:" + self.function_name
        self.log_group_name = self.log_stream_name = self.function_name
        self.identity = self.client_context = None

    @property
    def remaining_ms(self):
        return self.get_remaining_time_in_millis()

    def get_remaining_time_in_millis(self):
        if self._end is None:
            return 2**31 - 1
        return max(0, int((self._end - time.monotonic()) * 1000))


def arguments(f, *args):
    n = positional(f)
    return args if n is None else args[:n]


def encode(result):
    if isinstance(result, dict) and isinstance(result.get("body"), (bytes, bytearray)):
        result = {**result, "body": base64.b64encode(result["body"]).decode(), "isBase64Encoded": True}
    try:
        return json.dumps(result, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as e:
        raise Unusable("Runtime.InvalidResult", f"the handler's result cannot be written as JSON: {e}") from None


def failed_messages(result):
    """The messages of a batch that are to be delivered again, of a result in the form of AWS, too."""
    result = result if isinstance(result, dict) else {}
    again = list(result.get("failed") or [])
    again += [item.get("itemIdentifier") for item in result.get("batchItemFailures") or []]
    return {"failed": again}


def pick(handlers, start):
    handler = getattr(handlers, start["kind"])
    if start.get("rehearsal"):
        return rehearse_async if is_async(handler) else rehearse
    return handler


# In place of the handler, in rehearsals. What they print is kept as output of their calls.


def rehearse(event, context):
    print("rehearsal")
    return event


async def rehearse_async(event, context):
    return rehearse(event, context)


def rehearse_wsgi(environ, start_response):
    print("rehearsal")
    data = environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(data)))])
    return [data]


async def rehearse_asgi(scope, receive, send):
    print("rehearsal")
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


def restored(start):
    global original
    env = start.get("env") or {}
    for name in set(original) - set(env):
        os.environ.pop(name, None)
    os.environ.update(env)
    original = set(env)
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "ssl" in sys.modules:
        sys.modules["ssl"].RAND_add(os.urandom(32), 32.0)
    if "time" in sys.modules and hasattr(time, "tzset"):
        time.tzset()


def frame(kind, data=b""):
    return kind + struct.pack(">I", len(data)) + data


def pieces(data):
    for at in range(0, len(data), PIECE):
        yield data[at : at + PIECE]


def done(**fields):
    return frame(b"X", json.dumps(fields).encode())


def head(status, headers):
    return frame(b"H", json.dumps({"status": status, "headers": headers}).encode())


# Calls in threads ------------------------------------------------------------------------------------------------------


class Gone(Exception):
    """The caller has closed the connection."""


class Connection(io.RawIOBase):
    """A connection, and the body of its call as a file."""

    def __init__(self, sock):
        self.sock = sock
        self.file = sock.makefile("rb", 64 << 10)
        self.rest = b""
        self.ended = False

    def frame(self):
        header = self.file.read(5)
        if len(header) < 5:
            raise Gone()
        kind, size = struct.unpack(">cI", header)
        data = self.file.read(size)
        if len(data) < size:
            raise Gone()
        return kind, data

    def send(self, data):
        try:
            self.sock.sendall(data)
        except OSError as e:
            raise Gone() from e

    def readable(self):
        return True

    def readinto(self, buffer):
        while not self.rest and not self.ended:
            kind, self.rest = self.frame()
            self.ended = kind == b"E"
        n = min(len(buffer), len(self.rest))
        buffer[:n] = self.rest[:n]
        self.rest = self.rest[n:]
        return n


def serve_connection(handlers, sock):
    with sock:
        c = Connection(sock)
        try:
            kind, data = c.frame()
            if kind != b"S":
                return
            start = json.loads(data)
            contextvars.copy_context().run(serve_call, handlers, c, start)
        except Gone:
            pass


def serve_call(handlers, c, start):
    call_number.set(start.get("number", 0))
    try:
        if start["kind"] == "load":
            c.send(done(style=handlers.style, handlers=handlers.kinds))
        elif start["kind"] == "restored":
            restored(start)
            c.send(done())
        elif start["kind"] == "http":
            run_wsgi(rehearse_wsgi if start.get("rehearsal") else handlers.app, c, start)
            flush()
            c.send(done())
        else:
            f = pick(handlers, start)
            event = json.loads(io.BufferedReader(c).read())
            result = f(*arguments(f, event, Context(start)))
            result = encode(failed_messages(result) if start["kind"] == "queue" else result)
            flush()
            for piece in pieces(result):
                c.send(frame(b"D", piece))
            c.send(done())
    except Gone:
        flush()
        raise
    except SystemExit as e:
        end = exited(e)
        flush()
        c.send(done(**end))
    except BaseException as e:
        end = failure(e)
        flush()
        c.send(done(failure=end))


def wsgi_environ(c, start):
    path, _, query = start["url"].partition("?")
    from urllib.parse import unquote_to_bytes

    host = start.get("host", "localhost")
    environ = {
        "REQUEST_METHOD": start["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "RAW_URI": start["url"],
        "REQUEST_URI": start["url"],
        "SERVER_NAME": host.rsplit(":", 1)[0] or "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BufferedReader(c),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "pandastack.context": Context(start),
    }
    for name, value in start.get("headers") or []:
        key = name.upper().replace("-", "_")
        if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            key = "HTTP_" + key
        if key in environ and key != "HTTP_HOST":
            value = environ[key] + ("; " if key == "HTTP_COOKIE" else ",") + value
        environ[key] = value
    forwarded = environ.get("HTTP_X_FORWARDED_PROTO")
    if forwarded in ("http", "https"):
        environ["wsgi.url_scheme"] = forwarded
        environ["SERVER_PORT"] = "443" if forwarded == "https" else "80"
    if "HTTP_X_FORWARDED_FOR" in environ:
        environ["REMOTE_ADDR"] = environ["HTTP_X_FORWARDED_FOR"].split(",")[0].strip()
    return environ


def run_wsgi(app, c, start):
    begun, pending = False, None

    def begin():
        nonlocal begun
        if pending is None:
            raise RuntimeError("the application returned before it called start_response")
        begun = True
        status, headers = pending
        c.send(head(int(status.split(" ", 1)[0]), [[str(n), str(v)] for n, v in headers]))

    def write(data):
        if not begun:
            begin()
        for piece in pieces(bytes(data)):
            c.send(frame(b"D", piece))

    def start_response(status, headers, exc_info=None):
        nonlocal pending
        if exc_info:
            try:
                if begun:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None
        elif pending is not None:
            raise RuntimeError("start_response was called before")
        pending = (status, headers)
        return write

    body = app(wsgi_environ(c, start), start_response)
    try:
        for data in body:
            if data:
                write(data)
        if not begun:
            begin()
    finally:
        if hasattr(body, "close"):
            body.close()


class Threads:
    """The main thread serves connections while it is idle, and others when it is not."""

    def __init__(self, handlers):
        self.handlers = handlers
        self.lock = threading.Lock()
        self.main, self.pool = queue.SimpleQueue(), queue.SimpleQueue()
        self.main_idle, self.idle, self.threads = True, 0, 0

    def accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                os._exit(70)
            with self.lock:
                if self.main_idle:
                    self.main_idle = False
                    self.main.put(sock)
                    continue
                if self.idle > 0:
                    self.idle -= 1
                elif self.threads < THREADS:
                    self.threads += 1
                    threading.Thread(target=self.work, daemon=True).start()
                self.pool.put(sock)

    def work(self):
        while True:
            sock = self.pool.get()
            serve_connection(self.handlers, sock)
            with self.lock:
                self.idle += 1

    def run(self, listener):
        threading.Thread(target=self.accept, args=(listener,), daemon=True).start()
        while True:
            sock = self.main.get()
            serve_connection(self.handlers, sock)
            with self.lock:
                self.main_idle = True


# Calls on an event loop ------------------------------------------------------------------------------------------------


class Loop:
    def __init__(self, handlers):
        self.handlers = handlers

    async def run(self, listener):
        loop = asyncio.get_running_loop()
        self.lifespan = None
        if self.handlers.style == "asgi":
            await self.startup()
        server = await asyncio.start_unix_server(self.connection, sock=listener, limit=1 << 20)
        async with server:
            await server.serve_forever()

    async def startup(self):
        """Runs the lifespan of the application, if it has one."""
        incoming, ready = asyncio.Queue(), asyncio.get_running_loop().create_future()
        await incoming.put({"type": "lifespan.startup"})
        self.state = {}

        async def send(message):
            if message["type"] == "lifespan.startup.failed" and not ready.done():
                ready.set_exception(RuntimeError(message.get("message") or "the startup of the application failed"))
            elif not ready.done():
                ready.set_result(None)

        async def lifespan():
            scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.3"}, "state": self.state}
            try:
                await self.handlers.app(scope, incoming.get, send)
            except BaseException:
                pass  # the application has no lifespan
            if not ready.done():
                ready.set_result(None)

        self.lifespan = asyncio.create_task(lifespan())
        await ready

    async def connection(self, reader, writer):
        try:
            kind, data = await read_frame(reader)
            if kind == b"S":
                await self.call(json.loads(data), reader, writer)
        except (Gone, ConnectionError):
            pass
        finally:
            writer.close()

    async def call(self, start, reader, writer):
        call_number.set(start.get("number", 0))
        if start["kind"] == "load":
            writer.write(done(style=self.handlers.style, handlers=self.handlers.kinds))
        elif start["kind"] == "restored":
            restored(start)
            writer.write(done())
        else:
            await self.handle(start, reader, writer)
        await writer.drain()

    async def handle(self, start, reader, writer):
        try:
            if start["kind"] == "http":
                await self.run_asgi(start, reader, writer)
            else:
                await self.run_event(start, reader, writer)
            flush()
            writer.write(done())
        except (Gone, ConnectionError, asyncio.CancelledError):
            flush()
            raise
        except SystemExit as e:
            end = exited(e)
            flush()
            writer.write(done(**end))
        except BaseException as e:
            end = failure(e)
            flush()
            writer.write(done(failure=end))

    async def run_event(self, start, reader, writer):
        body = bytearray()
        while True:
            kind, data = await read_frame(reader)
            if kind == b"E":
                break
            body += data
        f, event, context = pick(self.handlers, start), json.loads(body), Context(start)
        if is_async(f):
            work = f(*arguments(f, event, context))
        else:
            work = asyncio.to_thread(f, *arguments(f, event, context))
        task = asyncio.ensure_future(work)
        watch = asyncio.create_task(until_gone(reader, task))
        try:
            result = await task
            result = encode(failed_messages(result) if start["kind"] == "queue" else result)
        finally:
            watch.cancel()
        for piece in pieces(result):
            writer.write(frame(b"D", piece))
            await writer.drain()

    async def run_asgi(self, start, reader, writer):
        path, _, query = start["url"].partition("?")
        from urllib.parse import unquote

        headers = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in start.get("headers") or []]
        given = dict(headers)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": start["method"],
            "scheme": given.get(b"x-forwarded-proto", b"http").decode("latin-1"),
            "path": unquote(path),
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "root_path": "",
            "headers": headers,
            "client": (given.get(b"x-forwarded-for", b"127.0.0.1").decode("latin-1").split(",")[0].strip(), 0),
            "server": (start.get("host", "localhost").rsplit(":", 1)[0], 80),
            "state": dict(getattr(self, "state", {})),
            "pandastack.context": Context(start),
        }
        body_ended, gone, first, finished = False, asyncio.Event(), None, False

        async def receive():
            nonlocal body_ended
            if body_ended:
                await hang_up(reader, gone)
                return {"type": "http.disconnect"}
            try:
                kind, data = await read_frame(reader)
            except Gone:
                gone.set()
                body_ended = True
                return {"type": "http.disconnect"}
            body_ended = kind == b"E"
            return {"type": "http.request", "body": data, "more_body": not body_ended}

        async def send(message):
            nonlocal first, finished
            if message["type"] == "http.response.start":
                first = [[bytes(n).decode("latin-1"), bytes(v).decode("latin-1")] for n, v in message.get("headers", [])]
                first = (message["status"], first)
                return
            if message["type"] != "http.response.body" or finished:
                return
            if first is not False:
                if first is None:
                    raise RuntimeError("the application sent a body before the start of the response")
                writer.write(head(*first))
                first = False
            for piece in pieces(bytes(message.get("body", b""))):
                writer.write(frame(b"D", piece))
            finished = not message.get("more_body", False)
            await writer.drain()

        app = rehearse_asgi if start.get("rehearsal") else self.handlers.app
        await app(scope, receive, send)
        if not finished:
            raise RuntimeError("the application returned before the end of the response")


async def read_frame(reader):
    try:
        kind, size = struct.unpack(">cI", await reader.readexactly(5))
        return kind, await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError) as e:
        raise Gone() from e


async def hang_up(reader, gone):
    if not gone.is_set():
        await reader.read(1)
        gone.set()


async def until_gone(reader, task):
    await reader.read(1)
    task.cancel()


# ----------------------------------------------------------------------------------------------------------------------


def serve(handlers, listener):
    if handlers.concurrent:
        asyncio.run(Loop(handlers).run(listener))
    else:
        Threads(handlers).run(listener)


def refuse(listener, end):
    """Says to the one who waits for the handler why there is none."""
    sock, _ = listener.accept()
    c = Connection(sock)
    try:
        c.frame()
        c.send(done(**end))
    except Gone:
        pass
    os._exit(1)


def main(path, name=""):
    listener = socket.socket(fileno=LISTENER)
    os.set_inheritable(LISTENER, False)
    sys.stdout, sys.stderr = text(1), text(2)
    sys.path[:] = [p for p in sys.path if p != os.path.dirname(os.path.abspath(__file__))]
    signal.signal(signal.SIGTERM, lambda *_: None)
    sys.argv = [path]
    try:
        handlers = load(path, name)
        flush()
    except SystemExit as e:
        end = exited(e)
    except BaseException as e:
        end = {"failure": failure(e)}
    else:
        serve(handlers, listener)
        return
    flush()
    refuse(listener, end)


original = set(filter(None, os.environ.pop("PANDASTACK_VARIABLES", "").split(",")))

if __name__ == "__main__":
    main(*sys.argv[1:3])
