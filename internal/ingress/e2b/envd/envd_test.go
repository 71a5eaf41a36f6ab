package envd_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd"
	fspb "github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem/filesystemconnect"
	pb "github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/process"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/process/processconnect"
)

const token = "agent-token"

// fixture is the agent of one sandbox whose guest is a plain process of this machine.
type fixture struct {
	url   string
	guest guestapi.Guest
	proc  processconnect.ProcessClient
	files filesystemconnect.FilesystemClient
	dir   string
}

type withToken struct{ http.RoundTripper }

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Access-Token", token)
	return w.RoundTripper.RoundTrip(r)
}

func newFixture(t *testing.T, opts ...connect.ClientOption) *fixture {
	t.Helper()
	b := agent.New(agent.Config{Reaper: process.NewReaper(false)})
	t.Cleanup(b.Close)
	s := envd.New(envd.Budgets{})
	t.Cleanup(s.Close)
	target := envd.Target{ID: "sbxa", Generation: 1, Guest: b, AccessToken: token, Env: map[string]string{"A": "1"}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.Serve(w, r, target) }))
	t.Cleanup(srv.Close)
	c := &http.Client{Transport: withToken{http.DefaultTransport}}
	return &fixture{
		url: srv.URL, guest: b, dir: t.TempDir(),
		proc:  processconnect.NewProcessClient(c, srv.URL, opts...),
		files: filesystemconnect.NewFilesystemClient(c, srv.URL, opts...),
	}
}

func bash(command string) *pb.ProcessConfig {
	return &pb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", command}}
}

// testTimeout is how long anything here may take on a busy machine.
const testTimeout = time.Minute

type processOutput struct {
	pid      uint32
	out, err string
	end      *pb.ProcessEvent_EndEvent
}

func collectOutput(
	t *testing.T,
	stream *connect.ServerStreamForClient[pb.StartResponse],
	each func(h *processOutput),
) (processOutput, error) {
	t.Helper()
	var h processOutput
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().GetEvent().(type) {
		case *pb.ProcessEvent_Start:
			h.pid = e.Start.GetPid()
		case *pb.ProcessEvent_Data:
			h.out += string(e.Data.GetStdout())
			h.err += string(e.Data.GetStderr())
		case *pb.ProcessEvent_End:
			h.end = e.End
		}
		if each != nil {
			each(&h)
		}
	}
	return h, stream.Err()
}

func (w *fixture) start(
	t *testing.T,
	ctx context.Context,
	req *pb.StartRequest,
	each func(h *processOutput),
) (processOutput, error) {
	t.Helper()
	stream, err := w.proc.Start(ctx, connect.NewRequest(req))
	if err != nil {
		return processOutput{}, err
	}
	defer stream.Close()
	return collectOutput(t, stream, each)
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func TestProcess(t *testing.T) {
	for name, opts := range map[string][]connect.ClientOption{"proto": nil, "json": {connect.WithProtoJSON()}} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, opts...)
			h, err := w.start(t, testContext(t), &pb.StartRequest{Process: bash("echo out; echo err >&2; exit 3")}, nil)
			if err != nil || h.out != "out\n" || h.err != "err\n" || h.end.GetExitCode() != 3 || h.pid == 0 {
				t.Fatalf("output is %+v, %v", h, err)
			}
			h, err = w.start(t, testContext(t), &pb.StartRequest{Process: bash("kill -9 $$")}, nil)
			if err != nil || h.end.GetExitCode() != -1 || h.end.GetExited() || h.end.GetStatus() != "signal: killed" {
				t.Fatalf("killed command: %+v, %v, want the signal", h, err)
			}
			_, err = w.start(
				t,
				testContext(t),
				&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/no/such/program"}},
				nil,
			)
			if connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Fatalf("Start(missing program) = %v, want %v", err, connect.CodeInvalidArgument)
			}
		})
	}
}

// Input, size and signals arrive in separate requests while the stream of the process is open.
func TestInput(t *testing.T) {
	w := newFixture(t)
	ctx := testContext(t)
	sel := func(pid uint32) *pb.ProcessSelector {
		return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: pid}}
	}
	sent := false
	h, err := w.start(
		t,
		ctx,
		&pb.StartRequest{Process: bash("read a; echo got $a; read b || echo closed")},
		func(h *processOutput) {
			var err error
			switch {
			case !sent:
				sent = true
				_, err = w.proc.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: sel(h.pid),
					Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte("hello\n")}}}))
			case h.out == "got hello\n":
				_, err = w.proc.CloseStdin(ctx, connect.NewRequest(&pb.CloseStdinRequest{Process: sel(h.pid)}))
			}
			if err != nil {
				t.Error(err)
			}
		},
	)
	if err != nil || h.out != "got hello\nclosed\n" {
		t.Fatalf("output is %+v, %v", h, err)
	}

	tag := "shell"
	h, err = w.start(t, ctx, &pb.StartRequest{Process: bash("read a; stty size; read a"), Tag: &tag,
		Pty: &pb.PTY{Size: &pb.PTY_Size{Rows: 20, Cols: 70}}}, func(h *processOutput) {
		if h.pid == 0 || h.end != nil {
			return
		}
		list, err := w.proc.List(ctx, connect.NewRequest(&pb.ListRequest{}))
		if err != nil || len(list.Msg.GetProcesses()) != 1 || list.Msg.GetProcesses()[0].GetTag() != tag {
			t.Errorf("List() = %v, %v, want the one process with its tag", list, err)
		}
		if _, err := w.proc.SendSignal(ctx, connect.NewRequest(&pb.SendSignalRequest{Process: sel(h.pid),
			Signal: pb.Signal_SIGNAL_SIGKILL})); err != nil {
			t.Error(err)
		}
	})
	if err != nil || h.end.GetStatus() != "signal: killed" {
		t.Fatalf("output is %+v, %v", h, err)
	}
	if _, err := w.proc.SendSignal(ctx, connect.NewRequest(&pb.SendSignalRequest{Process: sel(h.pid),
		Signal: pb.Signal_SIGNAL_SIGTERM})); connect.CodeOf(
		err,
	) != connect.CodeNotFound {
		t.Errorf("SendSignal(exited process) = %v, want %v", err, connect.CodeNotFound)
	}
}

// The client's deadline is the command's: when it passes, the command and its children are killed.
func TestDeadlineKills(t *testing.T) {
	w := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := w.start(t, ctx, &pb.StartRequest{Process: bash("sleep 1000 & sleep 1000")}, nil)
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Fatalf("Start() = %v, want deadline_exceeded", err)
	}
	waitProcessGone(t, w)
}

func waitProcessGone(t *testing.T, w *fixture) {
	t.Helper()
	end := time.Now().Add(testTimeout)
	for {
		list, err := w.proc.List(testContext(t), connect.NewRequest(&pb.ListRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Msg.GetProcesses()) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("processes %v still run, want none", list.Msg.GetProcesses())
		}
		<-time.After(20 * time.Millisecond)
	}
}

// A client that goes away does not end its command; a later one can connect to it and gets its end.
func TestDisconnect(t *testing.T) {
	w := newFixture(t)
	ctx, cancel := context.WithCancel(testContext(t))
	var pid uint32
	_, err := w.start(
		t,
		ctx,
		&pb.StartRequest{Process: bash("read a; exit 5")},
		func(h *processOutput) { pid = h.pid; cancel() },
	)
	if !errors.Is(err, context.Canceled) && connect.CodeOf(err) != connect.CodeCanceled {
		t.Fatalf("Start() = %v, want canceled", err)
	}
	sel := &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: pid}}
	stream, err := w.proc.Connect(testContext(t), connect.NewRequest(&pb.ConnectRequest{Process: sel}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var end *pb.ProcessEvent_EndEvent
	for stream.Receive() {
		if stream.Msg().GetEvent().GetStart() != nil {
			in := w.proc.StreamInput(testContext(t))
			_ = in.Send(
				&pb.StreamInputRequest{
					Event: &pb.StreamInputRequest_Start{Start: &pb.StreamInputRequest_StartEvent{Process: sel}},
				},
			)
			_ = in.Send(
				&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{
					Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte("x\n")}}}}},
			)
			if _, err := in.CloseAndReceive(); err != nil {
				t.Error(err)
			}
		}
		if e := stream.Msg().GetEvent().GetEnd(); e != nil {
			end = e
		}
	}
	if stream.Err() != nil || end.GetExitCode() != 5 {
		t.Fatalf("end is %v, %v, want exit code 5", end, stream.Err())
	}
}

func TestFilesystem(t *testing.T) {
	w := newFixture(t)
	ctx := testContext(t)
	made, err := w.files.MakeDir(ctx, connect.NewRequest(&fspb.MakeDirRequest{Path: w.dir + "/a/b"}))
	if err != nil || made.Msg.GetEntry().GetType() != fspb.FileType_FILE_TYPE_DIRECTORY {
		t.Fatalf("MakeDir() = %v, %v, want a directory", made, err)
	}
	_, err = w.files.MakeDir(ctx, connect.NewRequest(&fspb.MakeDirRequest{Path: w.dir + "/a/b"}))
	if connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("second MakeDir() = %v, want %v", err, connect.CodeAlreadyExists)
	}
	if err := os.WriteFile(w.dir+"/a/f", []byte("12345"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f", w.dir+"/a/l"); err != nil {
		t.Fatal(err)
	}
	info, err := w.files.Stat(ctx, connect.NewRequest(&fspb.StatRequest{Path: w.dir + "/a/f"}))
	if e := info.Msg.GetEntry(); err != nil || e.GetSize() != 5 || e.GetPermissions() != "-rw-r-----" ||
		e.GetMode() != 0o640 {
		t.Errorf("Stat() = %v, %v, want the file", info, err)
	}
	list, err := w.files.ListDir(ctx, connect.NewRequest(&fspb.ListDirRequest{Path: w.dir + "/a"}))
	if err != nil || len(list.Msg.GetEntries()) != 3 {
		t.Fatalf("ListDir() = %v, %v, want all entries", list, err)
	}
	for _, e := range list.Msg.GetEntries() {
		if e.GetName() == "l" && (e.GetType() != fspb.FileType_FILE_TYPE_FILE || e.GetMode() != 0o640 ||
			e.GetSymlinkTarget() != w.dir+"/a/f" || e.GetPermissions() != "Lrwxrwxrwx") {
			t.Errorf("entry of a link is %v, want type, mode and path of what it leads to", e)
		}
	}
	if _, err := w.files.Move(ctx, connect.NewRequest(&fspb.MoveRequest{Source: w.dir + "/a/f",
		Destination: w.dir + "/g"})); err != nil {
		t.Error(err)
	}
	info, err = w.files.Stat(ctx, connect.NewRequest(&fspb.StatRequest{Path: w.dir + "/a/l"}))
	if e := info.Msg.GetEntry(); err != nil || e.GetSymlinkTarget() != w.dir+"/a/l" ||
		e.GetType() != fspb.FileType_FILE_TYPE_UNSPECIFIED || e.GetMode() != 0 {
		t.Errorf("Stat() of a link to nothing = %v, %v, want its own path without a type", info, err)
	}
	for range 2 {
		if _, err := w.files.Remove(ctx, connect.NewRequest(&fspb.RemoveRequest{Path: w.dir + "/a"})); err != nil {
			t.Error(err)
		}
	}
	for path, want := range map[string]connect.Code{w.dir + "/a": connect.CodeNotFound,
		w.dir + "/g": connect.CodeInvalidArgument, "": connect.CodeInvalidArgument} {
		if _, err := w.files.ListDir(ctx, connect.NewRequest(&fspb.ListDirRequest{Path: path})); connect.CodeOf(
			err,
		) != want {
			t.Errorf("ListDir(%q) = %v, want %v", path, err, want)
		}
	}
}

func TestWatchers(t *testing.T) {
	w := newFixture(t)
	ctx := testContext(t)
	stream, err := w.files.WatchDir(
		ctx,
		connect.NewRequest(&fspb.WatchDirRequest{Path: w.dir, Recursive: true, IncludeEntry: true}),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	polled, err := w.files.CreateWatcher(ctx, connect.NewRequest(&fspb.CreateWatcherRequest{Path: w.dir}))
	if err != nil {
		t.Fatal(err)
	}
	id := polled.Msg.GetWatcherId()
	if !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatalf("first message is %v, %v, want start", stream.Msg(), stream.Err())
	}
	if err := os.WriteFile(filepath.Join(w.dir, "new"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || stream.Msg().GetFilesystem().GetName() != "new" {
		t.Fatalf("event is %v, %v, want the new file", stream.Msg(), stream.Err())
	}
	for end := time.Now().Add(testTimeout); ; {
		got, err := w.files.GetWatcherEvents(ctx, connect.NewRequest(&fspb.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Msg.GetEvents()) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a polled watcher reports no event, want the new file")
		}
		<-time.After(20 * time.Millisecond)
	}
	if _, err := w.files.RemoveWatcher(ctx, connect.NewRequest(&fspb.RemoveWatcherRequest{WatcherId: id})); err != nil {
		t.Error(err)
	}
	if _, err := w.files.GetWatcherEvents(ctx,
		connect.NewRequest(&fspb.GetWatcherEventsRequest{WatcherId: id})); connect.CodeOf(
		err,
	) != connect.CodeNotFound {
		t.Errorf("GetWatcherEvents(removed watcher) = %v, want %v", err, connect.CodeNotFound)
	}
}

func (w *fixture) http(
	t *testing.T,
	method, path string,
	q url.Values,
	header http.Header,
	body io.Reader,
) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), method, w.url+path+"?"+q.Encode(), body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestFiles(t *testing.T) {
	w := newFixture(t)
	file := w.dir + "/sub/f.bin"
	data := bytes.Repeat([]byte{0, 255, '\n', 'x'}, 300_000)
	auth := http.Header{"X-Access-Token": {token}}
	if status, text := w.http(t, "POST", "/files", url.Values{"path": {file}}, auth,
		bytes.NewReader(data)); status != 200 ||
		!strings.Contains(text, `"name":"f.bin"`) {
		t.Fatalf("upload = %d %s, want 200", status, text)
	}
	if status, text := w.http(t, "GET", "/files", url.Values{"path": {file}}, auth, nil); status != 200 ||
		text != string(data) {
		t.Fatalf("download = %d with %d bytes, want 200 with %d", status, len(text), len(data))
	}
	for name, c := range map[string]struct {
		path   string
		header http.Header
		status int
	}{
		"missing": {w.dir + "/none", auth, 404}, "directory": {w.dir, auth, 400}, "no-path": {"", auth, 400},
		"no-token": {file, nil, 401}, "wrong-token": {file, http.Header{"X-Access-Token": {"x"}}, 401},
	} {
		if status, text := w.http(t, "GET", "/files", url.Values{"path": {c.path}}, c.header, nil); status != c.status {
			t.Errorf("%s = %d %s, want %d", name, status, text, c.status)
		}
	}

	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	for _, name := range []string{w.dir + "/m/1", w.dir + "/m/2"} {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", `form-data; name="file"; filename="`+name+`"`)
		p, err := parts.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(p, filepath.Base(name))
	}
	parts.Close()
	header := http.Header{"X-Access-Token": {token}, "Content-Type": {parts.FormDataContentType()}}
	if status, text := w.http(t, "POST", "/files", nil, header, &form); status != 200 ||
		strings.Count(text, `"type":"file"`) != 2 {
		t.Fatalf("upload of parts = %d %s, want 200", status, text)
	}
	body, err := json.Marshal(
		map[string]any{"source_paths": []string{w.dir + "/m/1", w.dir + "/m/2"}, "destination": w.dir + "/m/all"},
	)
	if err != nil {
		t.Fatal(err)
	}
	if status, text := w.http(t, "POST", "/files/compose", nil, auth, bytes.NewReader(body)); status != 200 {
		t.Fatalf("compose = %d %s, want 200", status, text)
	}
	if got, err := os.ReadFile(w.dir + "/m/all"); err != nil || string(got) != "12" {
		t.Errorf("composed file is %q, %v, want all sources", got, err)
	}
	if left, err := os.ReadDir(w.dir + "/m"); err != nil || len(left) != 1 {
		t.Errorf("files %v are left, %v, want only the composed one", left, err)
	}
}

func TestSignedURLs(t *testing.T) {
	w := newFixture(t)
	file := w.dir + "/f"
	until := time.Now().Add(time.Hour).Unix()
	past := time.Now().Add(-time.Hour).Unix()
	query := func(operation, path, user string, exp *int64) url.Values {
		q := url.Values{"path": {path}, "signature": {envd.Sign(path, operation, user, token, exp)}}
		if exp != nil {
			q.Set("signature_expiration", strconv.FormatInt(*exp, 10))
		}
		if user != "" {
			q.Set("username", user)
		}
		return q
	}
	if status, text := w.http(t, "POST", "/files", query("write", file, "", &until), nil,
		strings.NewReader("x")); status != 200 {
		t.Fatalf("signed upload = %d %s, want 200", status, text)
	}
	if status, text := w.http(t, "GET", "/files", query("read", file, "root", nil), nil, nil); status != 200 ||
		text != "x" {
		t.Fatalf("signed download = %d %s, want 200", status, text)
	}
	// The signature is for the default user, not for the user in the header.
	somebody := http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte("nobody-here:"))}}
	if status, text := w.http(t, "GET", "/files", query("read", file, "", nil), somebody, nil); status != 200 {
		t.Errorf("download signed for the default user, by another one = %d %s, want 200", status, text)
	}
	if status, text := w.http(t, "POST", "/files", query("write", file, "", nil), somebody,
		strings.NewReader("x")); status != 200 {
		t.Errorf("upload signed for the default user, by another one = %d %s, want 200", status, text)
	}
	somebody.Set("X-Access-Token", token)
	if status, _ := w.http(t, "GET", "/files", url.Values{"path": {file}}, somebody, nil); status == 200 {
		t.Errorf("the user in the header is ignored beside the access token")
	}
	other := query("read", file, "", nil)
	other.Set("path", file+"2")
	longer := query("read", file, "", &until)
	longer.Set("signature_expiration", strconv.FormatInt(until+1, 10))
	for name, q := range map[string]url.Values{
		"other-path": other, "other-operation": query("write", file, "", nil), "longer": longer,
		"expired": query("read", file, "", &past),
	} {
		if status, text := w.http(t, "GET", "/files", q, nil, nil); status != 401 {
			t.Errorf("%s = %d %s, want 401", name, status, text)
		}
	}
}

func TestRequestsWithoutToken(t *testing.T) {
	w := newFixture(t)
	for _, path := range []string{"/process.Process/List", "/filesystem.Filesystem/Stat", "/metrics", "/envs",
		"/files/compose"} {
		method := "POST"
		if path == "/metrics" || path == "/envs" {
			method = "GET"
		}
		if status, _ := w.http(t, method, path, nil, http.Header{"Content-Type": {"application/json"}},
			strings.NewReader("{}")); status != 401 {
			t.Errorf("%s without a token = %d, want 401", path, status)
		}
	}
	if status, _ := w.http(t, "GET", "/health", nil, nil, nil); status != 204 {
		t.Errorf("GET /health = %d, want 204", status)
	}
	for _, path := range []string{"/init", "/freeze", "/upgrade"} {
		if status, _ := w.http(t, "POST", path, nil, http.Header{"X-Access-Token": {token}}, nil); status != 404 {
			t.Errorf("%s = %d, want 404", path, status)
		}
	}
}

func TestMetadata(t *testing.T) {
	w := newFixture(t)
	file := filepath.Join(w.dir, "noted")
	post := func(h http.Header) (int, string) {
		req, err := http.NewRequestWithContext(
			testContext(t),
			http.MethodPost,
			w.url+"/files?path="+url.QueryEscape(file),
			strings.NewReader("x"),
		)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		req.Header.Set("X-Access-Token", token)
		req.Header.Set("Content-Type", "application/octet-stream")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	for _, tt := range []struct {
		name string
		h    http.Header
		want int
		has  map[string]string
	}{
		{"two", http.Header{"X-Metadata-Author": {"me"}, "X-Metadata-N": {"1"}}, 200, map[string]string{"author": "me",
			"n": "1"}},
		{"long key", http.Header{"X-Metadata-" + strings.Repeat("K", 247): {"v"}}, 400,
			map[string]string{"author": "me", "n": "1"}},
		{"no key", http.Header{"X-Metadata-": {"v"}}, 400, map[string]string{"author": "me", "n": "1"}},
		{"no ASCII", http.Header{"X-Metadata-A": {"gr\u00fc\u00df"}}, 400, map[string]string{"author": "me", "n": "1"}},
		{"too much", http.Header{"X-Metadata-A": {strings.Repeat("v", 4096)}}, 400, map[string]string{"author": "me",
			"n": "1"}},
		{"another", http.Header{"X-Metadata-Other": {"2"}}, 200, map[string]string{"other": "2"}},
		{"none", http.Header{}, 200, nil},
	} {
		status, body := post(tt.h)
		if status != tt.want {
			t.Errorf("%s = %d %s, want the metadata", tt.name, status, body)
		}
		st, err := w.files.Stat(testContext(t), connect.NewRequest(&fspb.StatRequest{Path: file}))
		if err != nil || !maps.Equal(st.Msg.GetEntry().GetMetadata(), tt.has) {
			t.Errorf("Stat() after %s = %v, %v, want the metadata", tt.name, st, err)
		}
	}
}
