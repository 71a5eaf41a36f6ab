package blob_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobsuite"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

func open(t *testing.T, url string, opt blob.Options) blob.Store {
	t.Helper()
	s, err := blob.Open(t.Context(), url, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestDirectory(t *testing.T) {
	blobsuite.Run(t, func(t *testing.T) blob.Store { return open(t, "file://"+t.TempDir(), blob.Options{}) })
}

func TestS3(t *testing.T) {
	backend := s3mem.New()
	if err := backend.CreateBucket("things"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	var n atomic.Int64
	blobsuite.Run(t, func(t *testing.T) blob.Store {
		own := string(rune('a' + n.Add(1)))
		return open(
			t,
			"s3://things?region=us-east-1&use_path_style=true&prefix="+own+"/&endpoint="+server.URL,
			blob.Options{},
		)
	})
}

func TestShapedAndFaultyStores(t *testing.T) {
	blobsuite.Run(t, func(t *testing.T) blob.Store {
		return blobtest.NewFaulty(
			blobtest.NewShaped(open(t, "file://"+t.TempDir(), blob.Options{}), time.Microsecond, 1<<40),
			nil,
		)
	})
}

func TestURLsAreRefused(t *testing.T) {
	for url, why := range map[string]string{
		"":                        "want a URL that begins with",
		"http://example.com/x":    "want a URL that begins with",
		"file://host/x":           "absolute path",
		"file:x":                  "absolute path",
		"file:///x?y=1":           "absolute path",
		"s3://b?prefix=../":       "prefix",
		"s3://b?prefix=a":         "prefix",
		"s3://b?no_such_option=1": "no_such_option",
		"gs://b":                  "built without Google Cloud Storage",
		"azblob://b":              "built without Azure",
	} {
		_, err := blob.Open(t.Context(), url, blob.Options{})
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("Open(%q): %v, want an error with %q", url, err, why)
		}
	}
}

// A service that accepts a request and never replies costs the timeout, and the error is ErrTimeout.
func TestSilentService(t *testing.T) {
	stop := make(chan struct{})
	server := httptest.NewServer(silent(stop))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(stop) })
	s := open(
		t,
		"s3://things?region=us-east-1&use_path_style=true&anonymous=true&endpoint="+server.URL,
		blob.Options{Timeout: 100 * time.Millisecond},
	)
	for name, call := range map[string]func() error{
		"get":    func() error { _, err := blobtest.Get(t.Context(), s, "x", 0, -1); return err },
		"put":    func() error { return s.Put(t.Context(), "x", strings.NewReader("x"), 1) },
		"stat":   func() error { _, err := s.Stat(t.Context(), "x"); return err },
		"list":   func() error { return s.List(t.Context(), "x", func(blob.Info) error { return nil }) },
		"delete": func() error { return s.Delete(t.Context(), "x") },
	} {
		if err := call(); !errors.Is(err, blob.ErrTimeout) {
			t.Errorf("%s: got %v, want ErrTimeout", name, err)
		}
	}
}

// The file of a killed writer is invisible and is removed when it is old.
func TestDirectoryAfterAKill(t *testing.T) {
	root := t.TempDir()
	s := open(t, "file://"+root, blob.Options{})
	left := filepath.Join(root, ".new", "o123")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all := blobtest.Keys(t, s, ""); len(all) != 0 {
		t.Errorf("keys while an object is written = %v, want none", all)
	}
	open(t, "file://"+root, blob.Options{})
	if _, err := os.Stat(left); err != nil {
		t.Errorf("Open removed a file that may be being written: %v", err)
	}
	old := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	open(t, "file://"+root, blob.Options{})
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old file of a killed writer: stat = %v, want fs.ErrNotExist", err)
	}
}

func TestDirectoryLeavesNoRemnants(t *testing.T) {
	root := t.TempDir()
	s := open(t, "file://"+root, blob.Options{})
	blobtest.Put(t, s, "a/b", []byte("x"))
	if err := s.PutIfAbsent(t.Context(), "a/c", strings.NewReader("x"), 1); err != nil {
		t.Fatal(err)
	}
	_ = s.PutIfAbsent(t.Context(), "a/c", strings.NewReader("x"), 1)
	_ = s.Put(t.Context(), "a/b/c", strings.NewReader("x"), 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = s.Put(ctx, "d", strings.NewReader("x"), 1)
	if list, err := os.ReadDir(filepath.Join(root, ".new")); err != nil || len(list) != 0 {
		t.Errorf("temporary files = %v, %v; want none", list, err)
	}
}

// silent is a server that accepts requests and replies to none before stop is closed.
func silent(stop chan struct{}) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
}
