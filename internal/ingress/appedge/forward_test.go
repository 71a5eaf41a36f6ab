package appedge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/appedge"
)

// Requests that are no app's pass.
func TestOtherHosts(t *testing.T) {
	f := newFixture(t, nil).listen()
	for _, name := range []string{"other.apps.test", "127.0.0.1:80", "[::1]", ""} {
		r := f.request(http.MethodGet, "/", nil)
		r.Host = name
		f.want(f.do(r), http.StatusOK, "the API")
	}
}

// The program sees who the client is, and not what the client says about that.
func TestHeaders(t *testing.T) {
	f := newFixture(t, nil).listen()
	addr := program(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		_ = json.NewEncoder(w).Encode(r.Header)
		w.Header().Set("Alt-Svc", "h3")
	}))
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", addr) })
	res := f.get("/",
		"X-Forwarded-For", "9.9.9.9", "X-Forwarded-Host", "evil.test", "X-Real-IP", "9.9.9.9",
		"Forwarded", "for=9.9.9.9",
		"X_Forwarded_For", "9.9.9.9", "X-Forwarded-Port", "1", "CF-Connecting-IP", "9.9.9.9", "Proxy", "http://9.9.9.9",
		"X-Api-Key", "9.9.9.9", "Authorization", "Bearer pds_9.9.9.9", "Connection", "X-Hop", "X-Hop", "9.9.9.9",
		"X-Own", "kept", "Origin", "http://"+host, "Cookie", "a=b")
	f.want(res, http.StatusOK, "")
	if strings.Contains(res.body, "9.9.9.9") || strings.Contains(res.body, "evil") {
		t.Errorf("the program sees %s", res.body)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(res.body), &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Host": host, "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": host, "X-Forwarded-Proto": "http",
		"X-Real-Ip": "127.0.0.1", "X-Own": "kept", "Origin": "http://" + host, "Cookie": "a=b",
	} {
		if fmt.Sprint(got[name]) != "["+want+"]" && fmt.Sprint(got[name]) != want {
			t.Errorf("header %s is %v, want %s", name, got[name], want)
		}
	}
	if res.Header.Get("Alt-Svc") != "" {
		t.Error("the client sees Alt-Svc")
	}
}

// A request that a replica does not accept is sent to another, with its body.
func TestRetry(t *testing.T) {
	f := newFixture(t, nil).listen()
	addr := program(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	f.apps.change(func() {
		f.apps.start("sbxdead", "dpl1", "")
		f.apps.start("sbxlive", "dpl1", addr)
	})
	for range 4 {
		f.want(f.do(f.request(http.MethodPost, "/", strings.NewReader("a body"))), http.StatusOK, "a body")
	}
	f.apps.change(func() { f.apps.replicas = f.apps.replicas[:1] })
	f.want(f.do(f.request(http.MethodPost, "/", strings.NewReader("a body"))), http.StatusBadGateway, "port 3000")
	f.until(0)
}

// A replica that ended unnoticed is replaced by a wake.
func TestReplicaGone(t *testing.T) {
	f := newFixture(t, nil).listen()
	f.apps.change(func() { f.apps.replicas = []appedge.Replica{{Sandbox: "sbxgone", Deployment: "dpl1", Ready: true}} })
	f.wakeTo(program(t, text("hello")))
	f.want(f.get("/"), http.StatusOK, "hello")
	f.want(f.get("/"), http.StatusOK, "hello")
	if f.apps.wakes() != 1 {
		t.Errorf("%d wakes, want 1", f.apps.wakes())
	}
}

// No request of 3,000 fails while deployments are replaced and the machines of the earlier ones are removed.
func TestCutOverUnderLoad(t *testing.T) {
	f := newFixture(t, nil).listen()
	const total, clients, every = 3000, 8, 500
	deploy := func(n int) *httptest.Server {
		name := fmt.Sprintf("dpl%d", n)
		s := httptest.NewServer(text(name))
		f.apps.change(func() {
			f.apps.start(api.SandboxID("sbx"+name), api.DeploymentID(name), s.Listener.Addr().String())
			f.apps.route.Deployment, f.apps.route.Generation = api.DeploymentID(name), int64(n)
		})
		return s
	}
	live := deploy(1)
	var sent, failed atomic.Int64
	var group sync.WaitGroup
	cut := make(chan struct{}, total/every)
	for range clients {
		group.Go(func() {
			for n := sent.Add(1); n <= total; n = sent.Add(1) {
				if n%every == 0 {
					cut <- struct{}{}
				}
				res, err := f.server.Client().Transport.RoundTrip(f.request(http.MethodGet, "/", nil))
				if err != nil {
					t.Error(err)
					failed.Add(1)
					continue
				}
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("status %d %s %v", res.StatusCode, body, err)
					failed.Add(1)
				}
			}
		})
	}
	for n := range total / every {
		<-cut
		old := live
		live = deploy(n + 2)
		f.edge.Drain(t.Context(), appID, api.DeploymentID(fmt.Sprintf("dpl%d", n+1)))
		f.apps.change(func() {
			f.apps.replicas = f.apps.replicas[1:]
			delete(f.apps.guests, api.SandboxID(fmt.Sprintf("sbxdpl%d", n+1)))
		})
		old.CloseClientConnections()
		old.Close()
	}
	group.Wait()
	f.want(f.get("/"), http.StatusOK, fmt.Sprintf("dpl%d", total/every+1))
	live.Close()
	if failed.Load() != 0 {
		t.Errorf("%d requests failed", failed.Load())
	}
}

// Drain ends requests that do not end by themselves.
func TestDrainLimit(t *testing.T) {
	f := newFixture(t, func(c *appedge.Config) { c.DrainLimit = 2 * time.Millisecond }).listen()
	arrived := make(chan struct{})
	addr := program(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", addr) })
	done := make(chan answer)
	go func() { done <- f.get("/") }()
	<-arrived
	f.edge.Drain(t.Context(), appID, "dplother")
	if n := f.edge.InFlight(appID); n != 1 {
		t.Errorf("%d requests in flight, want 1", n)
	}
	f.edge.Drain(t.Context(), appID, "dpl1")
	f.want(<-done, http.StatusServiceUnavailable, "replaced")
}

// Sizes and times of requests are bounded.
func TestLimits(t *testing.T) {
	f := newFixture(t, func(c *appedge.Config) { c.MaxBody, c.Response = 8, 50*time.Millisecond }).listen()
	addr := program(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
		}
		_, _ = io.Copy(w, r.Body)
	}))
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", addr) })
	f.want(f.get("/slow"), http.StatusGatewayTimeout, `"code":"timeout"`)
	f.want(f.do(f.request(http.MethodPost, "/", strings.NewReader("12345678"))), http.StatusOK, "12345678")
	long := f.request(http.MethodPost, "/", strings.NewReader("123456789"))
	f.want(f.do(long), http.StatusRequestEntityTooLarge, "8 bytes")
	unknown := f.request(http.MethodPost, "/", io.MultiReader(strings.NewReader("12345"), strings.NewReader("6789")))
	if res := f.do(unknown); res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of unknown length: status %d %s", res.StatusCode, res.body)
	}
}

// An app without a deployment, and one that is stopped, say so and are not woken.
func TestNotRunning(t *testing.T) {
	f := newFixture(t, nil).listen()
	f.apps.route.Max = 0
	f.want(f.get("/"), http.StatusServiceUnavailable, "stopped")
	f.apps.route.Deployment = ""
	f.want(f.get("/"), http.StatusServiceUnavailable, "no deployment")
	if f.apps.wakes() != 0 {
		t.Errorf("%d wakes, want 0", f.apps.wakes())
	}
}

// Events arrive as they are sent, and the app is in use as long as their stream is open.
func TestEvents(t *testing.T) {
	f := newFixture(t, nil).listen()
	next := make(chan struct{})
	addr := program(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			_, _ = io.WriteString(w, "data: x\n\n")
			w.(http.Flusher).Flush()
			<-next
		}
	}))
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", addr) })
	res, err := f.server.Client().Transport.RoundTrip(f.request(http.MethodGet, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	buffer := make([]byte, 9)
	for range 2 {
		if _, err := io.ReadFull(res.Body, buffer); err != nil || string(buffer) != "data: x\n\n" {
			t.Fatalf("got %q %v", buffer, err)
		}
		if n := f.edge.InFlight(appID); n != 1 {
			t.Errorf("%d requests in flight, want 1", n)
		}
		next <- struct{}{}
	}
}

// HTTP/2 of clients and gRPC to programs pass, with trailers.
func TestHTTP2(t *testing.T) {
	f := newFixture(t, func(c *appedge.Config) { c.HSTS = "max-age=60" })
	f.server.StartTLS()
	t.Cleanup(f.server.Close)
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = fmt.Fprintf(w, "%d %s", r.ProtoMajor, r.Header.Get("X-Forwarded-Proto"))
		w.Header().Set("Grpc-Status", "0")
	}))
	upstream.Config.Protocols = new(http.Protocols)
	upstream.Config.Protocols.SetUnencryptedHTTP2(true)
	upstream.Config.Protocols.SetHTTP1(true)
	upstream.Start()
	t.Cleanup(upstream.Close)
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", upstream.Listener.Addr().String()) })
	r := f.request(http.MethodPost, "/", strings.NewReader("x"), "Content-Type", "application/grpc", "Te", "trailers")
	res := f.do(r)
	f.want(res, http.StatusOK, "2 https")
	if res.ProtoMajor != 2 || res.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("HTTP/%d, trailer %v", res.ProtoMajor, res.Trailer)
	}
	if got := res.Header.Get("Strict-Transport-Security"); got != "max-age=60" {
		t.Errorf("Strict-Transport-Security: %q", got)
	}
	f.want(f.get("/"), http.StatusOK, "1 https")
}

// Clients are sent to TLS, and to the host name that an app has chosen.
func TestRedirects(t *testing.T) {
	for _, c := range []struct {
		tls    int
		to     string
		host   string
		target string
	}{
		{443, "", host, "https://" + host + "/a%2Fb?c=d"},
		{8443, "", host + ":8080", "https://" + host + ":8443/a%2Fb?c=d"},
		{443, "www.shop.test", host, "https://www.shop.test/a%2Fb?c=d"},
		{0, "www.shop.test", host + ":8080", "http://www.shop.test:8080/a%2Fb?c=d"},
		{0, "www.shop.test", host, "http://www.shop.test/a%2Fb?c=d"},
	} {
		f := newFixture(t, func(cfg *appedge.Config) { cfg.TLSPort = c.tls }).listen()
		f.apps.route.Redirect = c.to
		r := f.request(http.MethodGet, "/a%2Fb?c=d", nil)
		r.Host = c.host
		res := f.do(r)
		if got := res.Header.Get("Location"); res.StatusCode != http.StatusPermanentRedirect || got != c.target {
			t.Errorf("%+v: %d %s", c, res.StatusCode, got)
		}
	}
}

// A request of the API is forwarded on an origin that is not the app's.
func TestForwardApp(t *testing.T) {
	f := newFixture(t, nil)
	addr := program(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "a=b; Domain=test")
		_, _ = io.WriteString(w, r.Host+" "+r.Header.Get("X-Forwarded-Prefix"))
	}))
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", addr) })
	fail := func(w http.ResponseWriter, _ *http.Request, err *api.Error) {
		http.Error(w, err.Message, http.StatusTeapot)
	}
	send := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
		f.edge.ForwardApp(w, r, f.apps.route, "/v1/apps/a/proxy", fail)
		return w
	}
	w := send()
	if got := w.Body.String(); got != "localhost:3000 /v1/apps/a/proxy" {
		t.Errorf("got %q", got)
	}
	if got := w.Header().Get("Set-Cookie"); got != "a=b; Path=/v1/apps/a/proxy/" {
		t.Errorf("cookie %q", got)
	}
	f.apps.route.Max = 0
	if w := send(); w.Code != http.StatusTeapot {
		t.Errorf("status %d", w.Code)
	}
}
