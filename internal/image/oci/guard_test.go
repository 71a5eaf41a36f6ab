package oci_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/image/oci"
)

// bystander is a server on loopback that no image names; it counts connections, and sends a text on each.
type bystander struct {
	port  string
	conns atomic.Int32
}

func newBystander(t *testing.T, answer string) *bystander {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	b := &bystander{}
	if _, b.port, err = net.SplitHostPort(l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.conns.Add(1)
			fmt.Fprint(c, answer)
			c.Close()
		}
	}()
	return b
}

func TestAddressesThatAreNotPublic(t *testing.T) {
	s := newServer(t)
	p, _ := s.puller(t, func(o *oci.Options) { o.Allow = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")} })
	for _, bad := range []string{
		"100.100.100.200/x:1", "192.0.0.192/x:1", "168.63.129.16/x:1", "198.18.0.1/x:1", "127.0.0.1/x:1",
		"10.0.0.1/x:1", "[::1]:443/x:1", "[fd00:ec2::254]:443/x:1", "[::ffff:10.0.0.1]:443/x:1", "2130706433:443/x:1",
		"no-such-name.invalid/x:1",
	} {
		if _, err := p.Resolve(t.Context(), bad); !errors.Is(err, oci.ErrReference) {
			t.Errorf("Resolve(%s): got %v, want ErrReference", bad, err)
		}
	}
}

// TestGuardedRequests sends a puller from a registry that it may reach to servers that it may not.
func TestGuardedRequests(t *testing.T) {
	s := newServer(t)
	ref := s.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: "1"})))
	for _, target := range []string{
		"http://127.0.0.1:", "https://127.0.0.1:", "http://localhost:", "https://localhost:",
	} {
		for what, lead := range map[string]func(to string) func(http.ResponseWriter, *http.Request) http.ResponseWriter{
			"redirect of the manifest": func(to string) func(http.ResponseWriter, *http.Request) http.ResponseWriter {
				return redirect("/manifests/", to)
			},
			"redirect of a blob": func(to string) func(http.ResponseWriter, *http.Request) http.ResponseWriter {
				return redirect("/blobs/", to)
			},
			"token realm": func(to string) func(http.ResponseWriter, *http.Request) http.ResponseWriter {
				return func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+to+`",service="x"`)
					w.WriteHeader(http.StatusUnauthorized)
					return nil
				}
			},
		} {
			b := newBystander(t, "")
			s.intercept(lead(target + b.port + "/token"))
			p, _ := s.puller(t, nil)
			if _, err := flatten(t.Context(), p, ref); err == nil {
				t.Errorf("%s to %s: got no error", what, target)
			}
			if n := b.conns.Load(); n != 0 {
				t.Errorf("%s to %s: the server got %d connections, want none", what, target, n)
			}
			s.intercept(nil)
		}
	}
	b := newBystander(t, "")
	s.intercept(redirect("/manifests/", "https://localhost:"+b.port+"/x"))
	p, _ := s.puller(t, func(o *oci.Options) {
		o.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	})
	if _, err := flatten(t.Context(), p, ref); err == nil || b.conns.Load() == 0 {
		t.Errorf("in an allowed network: got %v and %d connections, want connections", err, b.conns.Load())
	}
}

func redirect(part, to string) func(http.ResponseWriter, *http.Request) http.ResponseWriter {
	return func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if !strings.Contains(r.URL.Path, part) {
			return w
		}
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		return nil
	}
}

// TestErrorsQuoteNothing checks that no error contains what a server sent.
func TestErrorsQuoteNothing(t *testing.T) {
	const secret = "TOP-SECRET"
	s := newServer(t)
	ref := s.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: "1"})))
	respond := func(part string, status int, body string) func(http.ResponseWriter, *http.Request) http.ResponseWriter {
		return func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
			if !strings.Contains(r.URL.Path, part) {
				return w
			}
			w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
			w.WriteHeader(status)
			io.WriteString(w, body)
			return nil
		}
	}
	raw := func(part, text string) func(http.ResponseWriter, *http.Request) http.ResponseWriter {
		return func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
			if !strings.Contains(r.URL.Path, part) {
				return w
			}
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return nil
			}
			defer c.Close()
			io.WriteString(c, text)
			return nil
		}
	}
	token := func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if r.URL.Path == "/token" {
			io.WriteString(w, `{"secret":"`+secret+`"}`)
			return nil
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return nil
	}
	for what, row := range map[string]struct {
		hook func(http.ResponseWriter, *http.Request) http.ResponseWriter
		want error
	}{
		"ping":          {respond("/v2/", 404, secret), oci.ErrNotFound},
		"manifest body": {respond("/manifests/", 404, secret), oci.ErrNotFound},
		"manifest, forbidden": {
			respond("/manifests/", 403, `{"errors":[{"code":"DENIED","message":"`+secret+`"}]}`), oci.ErrDenied,
		},
		"manifest, other code": {respond("/manifests/", 418, `{"errors":[{"code":"`+secret+`"}]}`), oci.ErrUnavailable},
		"manifest, no JSON":    {respond("/manifests/", 200, secret), oci.ErrCorrupt},
		"manifest, no HTTP":    {raw("/manifests/", "SSH-2.0-"+secret+"\r\n"), oci.ErrUnavailable},
		"blob, reason":         {raw("/blobs/", "HTTP/1.1 404 "+secret+"\r\n\r\n"), oci.ErrNotFound},
		"blob, no HTTP":        {raw("/blobs/", secret+"\r\n"), oci.ErrUnavailable},
		"token":                {token, nil},
	} {
		s.intercept(row.hook)
		p, _ := s.puller(t, func(o *oci.Options) { o.Retries, o.Wait = 1, time.Millisecond })
		_, err := flatten(t.Context(), p, ref)
		if err == nil || row.want != nil && !errors.Is(err, row.want) {
			t.Errorf("%s: got %v, want %v", what, err, row.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error quotes the server: %v", what, err)
		}
	}
}
