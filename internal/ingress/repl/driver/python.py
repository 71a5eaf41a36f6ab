# Runs cells of code for a stateful context. Requests come as lines of JSON on standard input, answers go
# as lines of JSON to the first standard output; what cells and their children print goes to pipes and
# comes back as answers too. SIGINT interrupts the cell that runs and nothing else.
#
# With the argument "once" each cell runs in a copy of this process, made by fork, that ends with it. Cells run at the
# same time, and the request {"id": ..., "kill": true} ends one.
import _signal, ast, asyncio, base64, builtins, codecs, fcntl, importlib.abc, importlib.machinery, inspect, io, json, linecache, os, re, select, signal, sys, textwrap, threading, traceback

channel = os.fdopen(os.dup(1), "wb", buffering=0)
requests = os.fdopen(os.dup(0), "rb")
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
lock = threading.Lock()
current = {"id": None, "interrupt": False}


to_json = json.JSONEncoder(default=str).encode
to_text = json.encoder.encode_basestring_ascii
from_json = json.JSONDecoder().raw_decode
what_does = _signal.getsignal  # without the detour of the other module, which makes an enumeration's member of it
held = []  # answers that go with the next one, in one write
between = None  # a file whose lock lets one process write; None: there is no other


def send(kind, hold=False, **fields):
    fields["id"] = current["id"]
    fields["type"] = kind
    put(to_json(fields), hold)


def put(text, hold=False):
    """Sends a line of JSON."""
    data = text.encode() + b"\n"
    with lock:
        held.append(data)
        if hold:
            return
        data = b"".join(held)
        held.clear()
        if between is None:
            write(data)
            return
        fcntl.lockf(between, fcntl.LOCK_EX)
        try:
            write(b"\n" + data)  # a process that was killed may have left half a line
        finally:
            fcntl.lockf(between, fcntl.LOCK_UN)


def write(data):
    done = channel.write(data)
    while done < len(data):
        done += channel.write(memoryview(data)[done:])


class Capture:
    """One of the two outputs: a pipe in its place, read by a thread of its own and by whoever drains it."""

    def __init__(self, fd, kind):
        self.kind = kind
        self.lock = threading.Lock()
        self.read, write = os.pipe()
        os.set_blocking(self.read, False)
        self.now = select.poll()
        self.now.register(self.read, select.POLLIN)
        os.dup2(write, fd)
        os.close(write)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        wait = select.poll()
        wait.register(self.read, select.POLLIN)
        more = True
        while more:
            wait.poll()
            with self.lock:
                more = self.take()

    def take(self):
        """Sends what is in the pipe, and tells whether more may come."""
        while self.now.poll(0):  # asked first: an error for nothing there is slow where all code is cold
            data = os.read(self.read, 65536)
            self.say(self.decoder.decode(data))
            if len(data) < 65536:
                return bool(data)
        return True

    def say(self, text):
        if text:
            send(self.kind, text=text)

    def drain(self):
        """Returns when everything printed so far has been sent, half a character at its end too."""
        with self.lock:
            self.take()
            if self.decoder.getstate()[0]:
                self.say(self.decoder.decode(b"", final=True))


FORMATS = [
    ("text/html", "_repr_html_"), ("text/markdown", "_repr_markdown_"), ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"), ("application/pdf", "_repr_pdf_"),
    ("text/latex", "_repr_latex_"), ("application/json", "_repr_json_"), ("application/javascript", "_repr_javascript_"),
]


def plain(value):
    try:
        return repr(value)
    except Exception as err:
        return "<%s: its repr raised %s>" % (type(value).__name__, err)


def encode(value):
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else value


SIMPLE = (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)


def bundle(value):
    """The forms a value has, by type of content; bytes as base64."""
    if type(value) in SIMPLE:
        return {"text/plain": plain(value)}
    out = {}
    many = getattr(value, "_repr_mimebundle_", None)
    if callable(many) and not inspect.isclass(value):
        try:
            got = many()
            got = got[0] if isinstance(got, tuple) else got
            out.update({k: encode(v) for k, v in got.items()})
        except Exception:
            pass
    for kind, name in FORMATS:
        method = getattr(value, name, None)
        if kind in out or not callable(method) or inspect.isclass(value):
            continue
        try:
            got = method()
        except Exception:
            continue
        got = got[0] if isinstance(got, tuple) else got
        if got is not None:
            out[kind] = encode(got)
    if type(value).__module__.split(".")[0] == "pandas" and type(value).__name__ == "DataFrame":
        try:
            out["application/vnd.pandastack.data+json"] = {str(k): json.loads(v.to_json(orient="values", date_format="iso")) for k, v in value.items()}
        except Exception:
            pass
    out.setdefault("text/plain", plain(value))
    return out


def settle():
    """Sends what was printed so far, so that it stands before what comes."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        pass
    out.drain()
    err_out.drain()


def result(data):
    """Tells the value of a cell, at once with what comes next. The commonest has its line made by hand."""
    text = data["text/plain"]
    if len(data) == 1 and type(text) is str:
        put(f'{{"id": {to_text(current["id"])}, "type": "result", "main": true, "data": {{"text/plain": {to_text(text)}}}}}', True)
    else:
        send("result", hold=True, data=data, main=True)


def display(*values, **kwargs):
    for value in values:
        data = bundle(value)
        settle()
        send("result", data=data, main=False)


builtins.display = display


def number(value):
    try:
        value = value.item()
    except AttributeError:
        pass
    if isinstance(value, (int, float, str, bool)) or value is None:
        return value
    return str(value)


def scale(axis):
    name = type(axis.get_major_formatter()).__name__
    return "datetime" if "Date" in name else axis.get_scale()


class BoxWatch(importlib.abc.MetaPathFinder):
    """Makes matplotlib's axes remember the numbers of their box plots, which the drawing does not hold."""

    def find_spec(self, name, path, target=None):
        if name != "matplotlib.axes._axes":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            draw = module.Axes.bxp

            def bxp(ax, bxpstats, *args, **kwargs):
                bxpstats = list(bxpstats)
                ax.pandastack_boxes = getattr(ax, "pandastack_boxes", []) + bxpstats
                return draw(ax, bxpstats, *args, **kwargs)

            bxp.__doc__ = draw.__doc__
            module.Axes.bxp = bxp

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, BoxWatch())


def box(stats, n):
    outliers = [number(x) for x in stats.get("fliers", [])]
    return {"label": str(stats.get("label") or n + 1), "min": number(stats["whislo"]), "first_quartile": number(stats["q1"]),
            "median": number(stats["med"]), "third_quartile": number(stats["q3"]), "max": number(stats["whishi"]), "outliers": outliers}


def unit(label):
    """The unit in an axis' label, such as that of "Time (s)" or "Length [m]"."""
    found = re.search(r"\s\((.*?)\)|\[(.*?)\]", label or "")
    return found and (found.group(1) or found.group(2)) or None


def axes_chart(ax):
    """What a set of axes shows, in the words of E2B's charts."""
    from matplotlib import collections, patches
    chart = {"type": "unknown", "title": ax.get_title() or None, "elements": []}
    labels = {"x_label": ax.get_xlabel() or None, "y_label": ax.get_ylabel() or None, "x_unit": unit(ax.get_xlabel()), "y_unit": unit(ax.get_ylabel())}
    wedges = [p for p in ax.patches if isinstance(p, patches.Wedge)]
    bars = [p for c in ax.containers if type(c).__name__ == "BarContainer" for p in c.patches]
    points = [c for c in ax.collections if isinstance(c, collections.PathCollection)]
    if wedges:
        chart["type"] = "pie"
        for w in wedges:
            chart["elements"].append({"label": w.get_label(), "angle": round(abs(float(w.theta2) - float(w.theta1)), 4), "radius": number(w.r)})
        return chart
    chart.update(labels)
    boxes = getattr(ax, "pandastack_boxes", [])
    if boxes:
        chart.update(type="box_and_whisker", elements=[box(stats, n) for n, stats in enumerate(boxes)])
        return chart
    if bars:
        chart["type"] = "bar"
        names = [t.get_text() for t in ax.get_xticklabels()]
        for c in [c for c in ax.containers if type(c).__name__ == "BarContainer"]:
            lying = getattr(c, "orientation", None) == "horizontal"
            if lying:
                names = [t.get_text() for t in ax.get_yticklabels()]
                chart.update(x_label=labels["y_label"], y_label=labels["x_label"], x_unit=labels["y_unit"], y_unit=labels["x_unit"])
            for i, p in enumerate(c.patches):
                at = p.get_y() + p.get_height() / 2 if lying else p.get_x() + p.get_width() / 2
                name = names[i] if i < len(names) and names[i] else str(number(at))
                value = p.get_width() if lying else p.get_height()
                chart["elements"].append({"label": name, "group": str(c.get_label()), "value": number(value)})
        return chart
    kind, series = None, []
    if points:
        kind = "scatter"
        for c in points:
            series.append({"label": str(c.get_label()), "points": [[number(x), number(y)] for x, y in c.get_offsets().tolist()]})
    elif ax.lines:
        kind = "line"
        for line in ax.lines:
            xs, ys = line.get_xdata(), line.get_ydata()
            series.append({"label": str(line.get_label()), "points": [[number(x), number(y)] for x, y in zip(xs, ys)]})
    if kind:
        chart.update(type=kind, elements=series, x_ticks=[number(t) for t in ax.get_xticks()], y_ticks=[number(t) for t in ax.get_yticks()])
        chart.update(x_tick_labels=[t.get_text() for t in ax.get_xticklabels()], y_tick_labels=[t.get_text() for t in ax.get_yticklabels()])
        chart.update(x_scale=scale(ax.xaxis), y_scale=scale(ax.yaxis))
    return chart


def title(fig):
    """The title of a figure, which has no public name in every release of matplotlib."""
    text = getattr(fig, "_suptitle", None)
    return text.get_text() if text is not None else None


def figure_bundle(fig):
    out = {"text/plain": plain(fig)}
    image = io.BytesIO()
    fig.savefig(image, format="png", bbox_inches="tight")
    out["image/png"] = base64.b64encode(image.getvalue()).decode()
    try:
        charts = [axes_chart(ax) for ax in fig.axes]
        if len(charts) == 1:
            out["application/vnd.pandastack.chart+json"] = charts[0]
        elif charts:
            out["application/vnd.pandastack.chart+json"] = {"type": "superchart", "title": title(fig), "elements": charts}
    except Exception:
        pass
    return out


def figures():
    """Sends and closes the figures that the cell has left open."""
    managers = sys.modules.get("matplotlib._pylab_helpers")
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None or managers is None or not managers.Gcf.figs:
        return
    for n in plt.get_fignums():
        fig = plt.figure(n)
        data = figure_bundle(fig)
        settle()
        send("result", data=data, main=False)
        plt.close(fig)


os.environ.setdefault("MPLBACKEND", "Agg")
space = {"__name__": "__main__", "__builtins__": builtins, "display": display}
main = type(sys)("__main__")
main.__dict__.update(space)
space = main.__dict__
sys.modules["__main__"] = main
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
count = 0


def translate(source, name, mode):
    return compile(source, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)


def run(code):
    value = eval(code, space)
    if inspect.iscoroutine(value) and code.co_flags & inspect.CO_COROUTINE:
        task = loop.create_task(value)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            try:
                loop.run_until_complete(task)
            except (asyncio.CancelledError, Exception):
                pass
            raise
    return value


def shell():
    """IPython's shell over the variables of the cells, made when a cell needs it: importing it is slow."""
    get = space.get("get_ipython")
    if get is None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        made = InteractiveShell.instance(config=config, user_module=main)
        made.system = made.system_raw
        made.enable_gui = lambda gui=None: None
        made.enable_matplotlib = lambda gui=None: (None, "inline")  # figures are shown at the end of a cell
        get = made.get_ipython
        sys.modules["__main__"] = main
        space["get_ipython"] = get
    return get()


def transform(source, err):
    """A cell that is not Python as Python, with what notebooks have besides: indentation, !commands and %magics."""
    plain = textwrap.dedent(source).strip("\n")
    try:
        ast.parse(plain)
        return plain
    except SyntaxError:
        pass
    if not re.search(r"(^|=)\s*[!%?]|\?\s*$", source, re.M):
        raise err
    try:
        python = shell().input_transformer_manager.transform_cell(source)
    except ImportError:
        raise SyntaxError("!commands and %magics need IPython, which is not installed here: pip install ipython") from None
    ast.parse(python)
    return python


def parts(source, name):
    """The code of a cell in two: what it does, and its last expression; either may be None."""
    try:
        return plain_parts(source, name)
    except SyntaxError as err:
        other = transform(source, err)
    return plain_parts(other, name)


def plain_parts(source, name):
    """As parts, of Python alone."""
    if "\n" not in source and ";" not in source and "=" not in source:
        # Most likely one expression, which needs no tree: taking one apart is slow where all code is cold.
        try:
            return None, translate(source, name, "eval")
        except SyntaxError:
            pass
    tree = ast.parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = translate(ast.Expression(tree.body.pop().value), name, "eval")
    return translate(tree, name, "exec") if tree.body else None, last


def cell(source):
    """Runs one cell and sends the value of a last expression that does not end in a semicolon."""
    name = f"<cell {count}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    body, last = parts(source, name)
    if body is not None:
        run(body)
    if last is not None:
        value = run(last)
        if value is not None:
            space["_"] = value
            figure = sys.modules.get("matplotlib.figure")
            if not (figure and isinstance(value, figure.Figure)):
                data = bundle(value)
                settle()
                result(data)


def report(err):
    tb = err.__traceback__
    while tb and not tb.tb_frame.f_code.co_filename.startswith("<cell"):
        tb = tb.tb_next
    text = "".join(traceback.format_exception(type(err), err, tb))
    send("error", name=type(err).__name__, value=str(err), traceback=text)


def interrupt(*_):
    """Is there all the time, so that a cell need not change what a signal does: that is slow in cold code."""
    if current["interrupt"]:
        raise KeyboardInterrupt


adopted = {"owner": None, "env": {}}


def adopt(request):
    """Sets the variables of the sandbox, which is younger than a context that waited in its template."""
    owner, env = request.get("owner"), request.get("defaults")
    if not owner or env is None or owner == adopted["owner"]:
        return
    for key, value in env.items():
        if adopted["env"].get(key) != value:
            os.environ[key] = value
    adopted.update(owner=owner, env=env)


def handle(request):
    global count
    current["id"] = request["id"] or ""
    count += 1
    put(f'{{"id": {to_text(current["id"])}, "type": "count", "count": {count}}}', True)
    saved = {}
    code = 0
    try:
        adopt(request)
        for key, value in (request.get("env") or {}).items():
            saved[key] = os.environ.get(key)
            os.environ[key] = value
        if what_does(signal.SIGINT) is not interrupt:  # an earlier cell has changed it
            signal.signal(signal.SIGINT, interrupt)
        current["interrupt"] = True
        try:
            cell(request["code"])
            figures()
        finally:
            current["interrupt"] = False
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else (0 if err.code is None else 1)
    except BaseException as err:
        code = 1
        report(err)
    for key, value in saved.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    settle()
    put(f'{{"id": {to_text(current["id"])}, "type": "end", "code": {int(code)}}}')
    current["id"] = None


def capture():
    """Puts pipes in the places of both outputs."""
    global out, err_out
    out = Capture(1, "stdout")
    err_out = Capture(2, "stderr")
    sys.stdin = open(os.devnull)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def preload():
    """Imports what the environment names."""
    import importlib
    for name in os.environ.pop("PANDASTACK_PRELOAD", "").split():
        importlib.import_module(name)


def prepared():
    """Tells the template that all is imported, and was run once."""
    import gc
    linecache.cache.clear()
    gc.collect()
    gc.freeze()
    path = os.environ.pop("PANDASTACK_PREPARED", "")
    if path:
        open(path, "w").close()


FIRST = "print(end='')\n1+1"  # walks the way of a cell, so that the first one of a user finds it gone before


def contexts():
    """Runs cells one after the other."""
    global count
    capture()
    driver = os.getpid()
    if "PANDASTACK_PRELOAD" in os.environ:
        preload()
        handle({"id": None, "code": FIRST})
        count = 0
        space.pop("_", None)
        prepared()
    for line in requests:
        handle(from_json(line.decode())[0])
        if os.getpid() != driver:
            os._exit(0)  # a copy that a cell made by os.fork and that came back must not serve cells too


def alone(request):
    """Runs a cell in a copy of this process and ends it."""
    global loop
    try:
        os.setsid()
        requests.close()
        signal.signal(signal.SIGINT, interrupt)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        for name, seed in ("random", "seed"), ("numpy.random", "seed"):
            if name in sys.modules:
                getattr(sys.modules[name], seed)()
        capture()
        handle(request)
    finally:
        os._exit(0)


AT_ONCE = 64  # cells; others wait


def copies():
    """Runs each cell in a copy of its own."""
    global between
    between = os.memfd_create("pandastack-lock")
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    running, waiting = {}, []  # running: by the descriptor of the process, (process, id of the cell)

    def start(request):
        pid = os.fork()
        if pid == 0:
            alone(request)
        watch = os.pidfd_open(pid)
        running[watch] = pid, request["id"]
        poll.register(watch, select.POLLIN)

    def end(watch):
        """Collects a copy that has exited, and ends what it has left running."""
        pid, name = running.pop(watch)
        poll.unregister(watch)
        os.close(watch)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Who waits has read the copy's own last answer, unless it was killed or has ended itself.
        put(to_json({"id": name, "type": "end", "code": code if code >= 0 else 128 - code}))

    def kill(name):
        for pid, other in running.values():
            if other == name:
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:  # it has not made its group yet
                    os.kill(pid, signal.SIGKILL)
                return
        for n, request in enumerate(waiting):
            if request["id"] == name:
                del waiting[n]
                put(to_json({"id": name, "type": "end", "code": 137}))
                return

    if "PANDASTACK_PRELOAD" in os.environ:
        preload()
        start({"id": "", "code": FIRST})
        while running:
            for fd, _ in poll.poll():
                if fd in running:
                    end(fd)
        prepared()
    rest = b""
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                end(fd)
                continue
            data = os.read(fd, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                request = from_json(line.decode())[0]
                if request.get("kill"):
                    kill(request["id"])
                else:
                    waiting.append(request)
        while waiting and len(running) < AT_ONCE:
            start(waiting.pop(0))


once = sys.argv[1:] == ["once"]
sys.argv = [""]
sys.path.insert(0, "")
if once:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    put("{}")
    copies()
else:
    signal.signal(signal.SIGINT, interrupt)
    put("{}")  # from here on a signal does not end it: the other side waits for something before it sends one
    contexts()
