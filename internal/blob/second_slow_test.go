//go:build slow

package blob_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/blob"
	"github.com/pandastack/pandastack/internal/blob/blobtest"
)

// gateway is an S3 server that has nothing to do with the one that the quick tests use. It keeps objects in files.
const gateway = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

// TestS3OfAnotherServer runs the suite against a server that is built for it.
func TestS3OfAnotherServer(t *testing.T) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "install", gateway)
	build.Dir = dir // outside of this module: it stays as it is
	build.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", gateway, err, out)
	}
	files := filepath.Join(dir, "files")
	if err := os.MkdirAll(filepath.Join(files, "things"), 0o700); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	url := "http://" + port
	serve := exec.Command(filepath.Join(dir, "versitygw"), "--port", port, "--access", "test", "--secret", "testtest", "posix", files)
	serve.Stdout, serve.Stderr = t.Output(), t.Output()
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := serve.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = serve.Wait() // it was killed, which is told as an error
	})
	answers(t, url)
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testtest")
	n := 0
	blobtest.Run(t, func(t *testing.T) blob.Store {
		n++
		return open(t, fmt.Sprintf("s3://things?region=us-east-1&use_path_style=true&prefix=s%d/&endpoint=%s", n, url), blob.Options{})
	})
}

// freePort is an address on this machine that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// answers waits until somebody speaks HTTP at a URL.
func answers(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("no answer within a minute"))
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close() // nothing of it is read
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: %v (%v)", url, err, context.Cause(ctx))
		}
		<-time.After(50 * time.Millisecond)
	}
}
