package envd_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd"
)

// stubGuest is a guest without processes and files that records the paths of writes.
type stubGuest struct {
	guestapi.Guest
	written []string
	read    bool
}

func (*stubGuest) Start(context.Context, guestapi.ProcessSpec) (guestapi.Process, error) {
	return nil, guestapi.ErrNotFound
}
func (*stubGuest) Attach(context.Context, guestapi.ProcessRef, guestapi.Offsets) (guestapi.Process, error) {
	return nil, guestapi.ErrNotFound
}
func (*stubGuest) Processes(context.Context) ([]guestapi.ProcessInfo, error) { return nil, nil }
func (*stubGuest) Signal(context.Context, guestapi.ProcessRef, int, bool) error {
	return guestapi.ErrNotFound
}
func (*stubGuest) Stat(context.Context, string, string) (guestapi.FileInfo, error) {
	return guestapi.FileInfo{}, guestapi.ErrNotFound
}
func (*stubGuest) List(context.Context, string, string, int) ([]guestapi.FileInfo, error) {
	return nil, guestapi.ErrNotFound
}
func (e *stubGuest) Read(context.Context, string, string, int64, int64) (guestapi.FileInfo, io.ReadCloser, error) {
	e.read = true
	return guestapi.FileInfo{}, nil, guestapi.ErrNotFound
}

func (e *stubGuest) Write(
	_ context.Context,
	path string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return guestapi.FileInfo{}, err
	}
	e.written = append(e.written, path)
	return guestapi.FileInfo{Path: path, Kind: guestapi.KindFile, Metadata: opt.Metadata}, nil
}
func (*stubGuest) Move(context.Context, string, string, string) (guestapi.FileInfo, error) {
	return guestapi.FileInfo{}, guestapi.ErrNotFound
}
func (*stubGuest) Remove(context.Context, string, string, bool) error { return guestapi.ErrNotFound }
func (*stubGuest) MakeDir(context.Context, string, string) (guestapi.FileInfo, error) {
	return guestapi.FileInfo{}, guestapi.ErrExists
}
func (*stubGuest) Watch(context.Context, string, string, bool) (guestapi.Watcher, error) {
	return nil, guestapi.ErrNotFound
}

// serveRequest sends one request to the agent of a stubGuest.
func serveRequest(method, target string, h http.Header, body []byte) (*httptest.ResponseRecorder, *stubGuest) {
	g := &stubGuest{}
	s := envd.New(envd.Budgets{})
	defer s.Close()
	r := httptest.NewRequest(method, "/", bytes.NewReader(body))
	r.URL, _ = url.Parse(target) // the tests build it from escaped parts
	r.Header = h
	w := httptest.NewRecorder()
	s.Serve(w, r, envd.Target{ID: "sbxa", Generation: 1, Guest: g, AccessToken: token})
	return w, g
}

// Any envelope and message gets a response, and no process starts.
func FuzzConnect(f *testing.F) {
	methods := []string{
		"process.Process/Start", "process.Process/Connect", "process.Process/StreamInput", "process.Process/SendInput",
		"process.Process/SendSignal",
		"process.Process/Update", "process.Process/List", "process.Process/CloseStdin", "filesystem.Filesystem/Stat",
		"filesystem.Filesystem/ListDir",
		"filesystem.Filesystem/Move", "filesystem.Filesystem/Remove", "filesystem.Filesystem/MakeDir",
		"filesystem.Filesystem/WatchDir",
		"filesystem.Filesystem/CreateWatcher", "filesystem.Filesystem/GetWatcherEvents",
		"filesystem.Filesystem/RemoveWatcher",
	}
	kinds := []string{
		"application/connect+json",
		"application/connect+proto",
		"application/json",
		"application/proto",
		"application/grpc",
		"application/grpc-web",
	}
	f.Add(uint8(0), uint8(0), []byte("\x00\x00\x00\x00\x20{\"process\":{\"cmd\":\"/bin/true\"}} "))
	f.Add(uint8(0), uint8(1), []byte("\x00\xff\xff\xff\xff"))
	f.Add(uint8(8), uint8(2), []byte(`{"path":"a"}`))
	f.Add(uint8(13), uint8(1), []byte("\x01\x00\x00\x00\x03\x0a\x01a"))
	f.Fuzz(func(t *testing.T, method, kind uint8, body []byte) {
		name := methods[int(method)%len(methods)]
		h := http.Header{
			"Content-Type":       {kinds[int(kind)%len(kinds)]},
			"X-Access-Token":     {token},
			"Connect-Timeout-Ms": {"1000"},
		}
		w, g := serveRequest(http.MethodPost, "/"+name, h, body)
		if w.Code < 200 || w.Code > 599 || len(g.written) > 0 || g.read {
			t.Errorf("%s with %q = %d and wrote %v, want a response and no write", name, body, w.Code, g.written)
		}
		h.Del("X-Access-Token")
		if w, _ := serveRequest(http.MethodPost, "/"+name, h, body); w.Code != http.StatusUnauthorized {
			t.Errorf("%s without a token = %d, want 401", name, w.Code)
		}
	})
}

// A body of parts is written wholly or refused, and every written file has a name.
func FuzzUpload(f *testing.F) {
	f.Add("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a\"\r\n\r\nx\r\n--b--\r\n", "b")
	f.Add("--b\r\nContent-Disposition: form-data; name=file; filename*=utf-8''%2e%2e\r\n\r\n", "b")
	f.Fuzz(func(t *testing.T, body, boundary string) {
		h := http.Header{
			"Content-Type":   {"multipart/form-data; boundary=\"" + boundary + "\""},
			"X-Access-Token": {token},
		}
		w, g := serveRequest(http.MethodPost, "/files", h, []byte(body))
		if (w.Code == http.StatusOK) && len(g.written) == 0 || w.Code >= 500 {
			t.Errorf("upload of %q = %d %s and wrote %q", body, w.Code, w.Body, g.written)
		}
		for _, name := range g.written {
			if name == "" || !strings.Contains(body, "file") {
				t.Errorf("upload of %q wrote to %q, want a name", body, name)
			}
		}
	})
}

// Only the signature of exactly this file, user, operation and expiration gives access.
func FuzzSignature(f *testing.F) {
	end := time.Now().Add(time.Hour).Unix()
	good := envd.Sign("/a", "read", "user", token, &end)
	f.Add("/a", "user", good, strconv.FormatInt(end, 10))
	f.Add("/a", "user", good, "")
	f.Add("/a:read", "", "v1_", "1")
	f.Fuzz(func(t *testing.T, file, user, signature, until string) {
		q := url.Values{"path": {file}, "username": {user}, "signature": {signature}, "signature_expiration": {until}}
		_, g := serveRequest(http.MethodGet, "/files?"+q.Encode(), http.Header{}, nil)
		n, err := strconv.ParseInt(until, 10, 64)
		var given *int64
		if err == nil {
			given = &n
		}
		opens := file != "" && signature == envd.Sign(file, "read", user, token, given) &&
			(until == "" || err == nil && n >= time.Now().Unix()-1)
		if g.read && !opens {
			t.Errorf("%q of %q until %q is accessible with %q, want it only with its signature", file, user, until,
				signature)
		}
	})
}

// Stored metadata is what was sent, with lower-case keys and within bounds.
func FuzzMetadata(f *testing.F) {
	f.Add("Author", "me")
	f.Add("", "")
	f.Add("K", strings.Repeat("v", 5000))
	f.Fuzz(func(t *testing.T, key, value string) {
		h := http.Header{"X-Access-Token": {token}, "X-Metadata-" + key: {value}}
		w, g := serveRequest(http.MethodPost, "/files?path=a", h, []byte("x"))
		if w.Code == http.StatusOK && (key == "" || len(key)+len(value) > 4096 || len(g.written) != 1) ||
			w.Code != http.StatusOK && len(g.written) > 0 {
			t.Errorf("metadata %q=%q = %d and wrote %v", key, value, w.Code, g.written)
		}
	})
}
