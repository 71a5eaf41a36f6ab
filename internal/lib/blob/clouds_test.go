//go:build clouds

package blob_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobsuite"
)

// Servers that implement the services' interfaces, built or installed for these tests.
const (
	s3Server     = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
	googleServer = "github.com/fsouza/fake-gcs-server@v1.52.3"
	azureServer  = "azurite@3.37.0"
)

// TestS3OfAnotherServer runs the suite against an S3 server unrelated to the one of the quick tests. It keeps
// objects in files.
func TestS3OfAnotherServer(t *testing.T) {
	program, at, files := install(t, s3Server), freePort(t), t.TempDir()
	if err := os.Mkdir(filepath.Join(files, "things"), 0o700); err != nil {
		t.Fatal(err)
	}
	serve(t, program, "--port", at, "--access", "test", "--secret", "testtest", "posix", files)
	waitForServer(t, "http://"+at)
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testtest")
	suite(t, "s3://things?region=us-east-1&use_path_style=true&endpoint=http://"+at+"&")
}

// TestGoogle runs the suite against a server of Google Cloud Storage's interface.
func TestGoogle(t *testing.T) {
	program, at := install(t, googleServer), freePort(t)
	host, port, _ := strings.Cut(at, ":")
	serve(
		t,
		program,
		"-scheme",
		"http",
		"-host",
		host,
		"-port",
		port,
		"-public-host",
		at,
		"-backend",
		"memory",
		"-log-level",
		"error",
	)
	waitForServer(t, "http://"+at+"/storage/v1/b?project=p")
	res, err := http.Post(
		"http://"+at+"/storage/v1/b?project=p",
		"application/json",
		strings.NewReader(`{"name":"things"}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close() // the body is not read
	if res.StatusCode != http.StatusOK {
		t.Fatalf("create bucket: got status %s, want 200", res.Status)
	}
	t.Setenv("STORAGE_EMULATOR_HOST", at)
	suite(t, "gs://things?anonymous=true&")
}

// TestAzure runs the suite against a server of Azure's interface.
func TestAzure(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("probe npm: npm is not installed, and the test server for Azure needs it")
	}
	dir := t.TempDir()
	get := exec.CommandContext(
		t.Context(),
		"npm",
		"install",
		"--prefix",
		dir,
		"--no-audit",
		"--no-fund",
		"--ignore-scripts",
		azureServer,
	)
	if out, err := get.CombinedOutput(); err != nil {
		t.Fatalf("install %s: %v\n%s", azureServer, err, out)
	}
	secret := make([]byte, 64)
	_, _ = rand.Read(secret) // never fails: it ends the program instead
	key, at := base64.StdEncoding.EncodeToString(secret), freePort(t)
	host, port, _ := strings.Cut(at, ":")
	t.Setenv("AZURITE_ACCOUNTS", "tests:"+key)
	serve(t, filepath.Join(dir, "node_modules/.bin/azurite-blob"), "--blobHost", host, "--blobPort", port,
		"--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
	waitForServer(t, "http://"+at)
	cred, err := container.NewSharedKeyCredential("tests", key)
	if err != nil {
		t.Fatal(err)
	}
	client, err := container.NewClientWithSharedKeyCredential("http://"+at+"/tests/things", cred, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AZURE_STORAGE_ACCOUNT", "tests")
	t.Setenv("AZURE_STORAGE_KEY", key)
	suite(t, "azblob://things?protocol=http&localemu=true&domain="+url.QueryEscape(at)+"&")
}

// suite runs blobsuite over the store that a URL names, each test below a prefix of its own.
func suite(t *testing.T, url string) {
	n := 0
	blobsuite.Run(t, func(t *testing.T) blob.Store {
		n++
		return open(t, fmt.Sprintf("%sprefix=s%d/", url, n), blob.Options{})
	})
}

// install builds a program outside of this module, which stays as it is.
func install(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "install", program)
	build.Dir = dir
	build.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", program, err, out)
	}
	path, _, _ := strings.Cut(program, "@")
	return filepath.Join(dir, filepath.Base(path))
}

// serve runs a server until the test ends.
func serve(t *testing.T, program string, args ...string) {
	t.Helper()
	server := exec.Command(program, args...)
	server.Stdout, server.Stderr = t.Output(), t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = server.Wait() // the server was killed, which Wait reports as an error
	})
}

// freePort returns an address of this machine that has no listener.
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

// waitForServer waits until a server speaks HTTP at a URL.
func waitForServer(t *testing.T, url string) {
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
			_ = res.Body.Close() // the body is not read
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: %v (%v)", url, err, context.Cause(ctx))
		}
		<-time.After(50 * time.Millisecond)
	}
}
