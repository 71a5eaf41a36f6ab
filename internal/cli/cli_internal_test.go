package cli

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/lib/config"
)

func TestQuote(t *testing.T) {
	for _, text := range []string{"", "plain", "two words", "it's", "$HOME `id` \"x\"", "a\nb", "*?[", "é", "-n"} {
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "printf %s "+cmdutil.Quote(text)).Output()
		if err != nil || string(out) != text {
			t.Errorf("a shell reads %s as %q (%v), want %q", cmdutil.Quote(text), out, err, text)
		}
	}
	if got := cmdutil.CommandLine([]string{"a b | c"}); got != "a b | c" {
		t.Errorf("one argument becomes %q", got)
	}
	if got := cmdutil.CommandLine([]string{"echo", "a b"}); got != "echo 'a b'" {
		t.Errorf("two arguments become %q", got)
	}
}

func TestReachable(t *testing.T) {
	for want, n := range map[string]*api.Network{
		"everything":                         nil,
		"nothing":                            {DenyOthers: true},
		"a.example, 192.0.2.1; nothing else": {AllowOut: []string{"a.example", "192.0.2.1"}, DenyOthers: true},
		"not b.example; everything else":     {DenyOut: []string{"b.example"}},
		"a.b.example; not *.b.example; everything else": {
			AllowOut: []string{"a.b.example"}, DenyOut: []string{"*.b.example"},
		},
	} {
		if got := reachable(n); got != want {
			t.Errorf("reachable(%+v) = %q, want %q", n, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 30: "3.0 GiB"} {
		if got := cmdutil.Size(n); got != want {
			t.Errorf("cmdutil.Size(%d) = %q, want %q", n, got, want)
		}
	}
}

func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode = 0o644
		if h.Typeflag == tar.TypeReg {
			h.Size = 2
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, "hi"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestPackUnpack(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	if err := os.MkdirAll(filepath.Join(from, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "a/b/x.sh"), []byte("echo"), 0o755); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := errors.Join(pack(from, &b), unpack(&b, to)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(to, "a/b/x.sh"))
	if err != nil || info.Mode().Perm() != 0o755 || info.Size() != 4 {
		t.Errorf("unpacked %v (%v)", info, err)
	}
}

// TestUnpackStaysInside gives archives as a hostile guest would make them.
func TestUnpackStaysInside(t *testing.T) {
	for _, tt := range []struct {
		name    string
		headers []tar.Header
	}{
		{"parent", []tar.Header{{Name: "../escaped", Typeflag: tar.TypeReg}}},
		{"absolute", []tar.Header{{Name: "/escaped", Typeflag: tar.TypeReg}}},
		{"through-link", []tar.Header{
			{Name: "l", Linkname: "..", Typeflag: tar.TypeSymlink}, {Name: "l/escaped", Typeflag: tar.TypeReg},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "in")
			if err := unpack(bytes.NewReader(archive(t, tt.headers...)), dir); err == nil {
				t.Error("no error")
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(dir), "escaped")); err == nil {
				t.Error("a file was written outside")
			}
		})
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := filepath.Join(t.TempDir(), "in")
		_ = unpack(bytes.NewReader(data), dir) // must only not crash, and not leave dir
		entries, err := os.ReadDir(filepath.Dir(dir))
		if err != nil || len(entries) != 1 {
			t.Errorf("beside the directory are %v (%v)", entries, err)
		}
	})
}

func TestSandboxFactsShowDataDisks(t *testing.T) {
	var out bytes.Buffer
	disks := []api.DataDisk{
		{Name: "rows", SizeMB: 64, MountPath: "/var/rows"},
		{Name: "logs", SizeMB: 32, MountPath: "/var/logs"},
	}
	if err := sandboxFacts(&out, api.Sandbox{DataDisks: disks}); err != nil ||
		!bytes.Contains(out.Bytes(), []byte("rows: 64 MiB at /var/rows, logs: 32 MiB at /var/logs\n")) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestBuildLinesAreBelowTheirStep(t *testing.T) {
	var out strings.Builder
	show := buildLines(func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) })
	for _, l := range []api.BuildLine{
		{Line: "image is cached"}, {Step: "1/3 COPY . .", Line: "cached"},
		{Step: "2/3 RUN a \\\n  b", Line: "begins"}, {Step: "2/3 RUN a \\\n  b", Line: "out"},
		{Step: "3/3 RUN " + strings.Repeat("é", 200), Line: "begins"},
		{Step: "publish boot", Line: "booted"}, {Step: "publish boot", Line: "start: x"}, {Line: "ready"},
	} {
		show(l)
	}
	want := "image is cached\n[1/3 COPY . .] cached\n[2/3 RUN a \\ b]\n  out\n[3/3 RUN " + strings.Repeat(
		"é",
		92,
	) + "...]\n[publish boot]\n  booted\n  start: x\nready\n"
	if out.String() != want {
		t.Errorf("got lines %q, want %q", out.String(), want)
	}
}

// TestConformanceNeedsAGuest checks that the command fails before it builds anything if Firecracker cannot run a guest.
func TestConformanceNeedsAGuest(t *testing.T) {
	faulty := filepath.Join(t.TempDir(), "firecracker")
	if err := os.WriteFile(faulty, []byte("#!/bin/sh\necho Firecracker v1.16.1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/nowhere/firecracker": "no such file", faulty: "1.16.1 is not used"} {
		n := &config.Node{DataDir: t.TempDir(), VMM: config.VMM{Firecracker: path}}
		_, err := monitor(t.Context(), "firecracker", n)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pandastack doctor") {
			t.Errorf("%s: got %v, want %q and what to do", path, err, want)
		}
	}
}

// TestPreviewID checks that previews can be named by their id, token or URL.
func TestPreviewID(t *testing.T) {
	token, id := proxy.SignPreview(bytes.Repeat([]byte("k"), 32), proxy.Preview{Sandbox: "sbxa", Port: 80})
	for _, text := range []string{
		id, token, "http://80-sbxa.localhost:7700/x?a=b&pandastack_preview=" + token,
		"https://panda.example/v1/p/" + token + "/x", "/v1/p/" + token,
	} {
		if got := previewID(text); got != id {
			t.Errorf("previewID(%q) = %s, want %s", text, got, id)
		}
	}
}

// TestCopySaysWhatItCannotCopy copies a fifo, which has no content that ends.
func TestCopySaysWhatItCannotCopy(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "deep", "pipe")
	if err := errors.Join(os.Mkdir(filepath.Dir(pipe), 0o755), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	c := &copier{}
	if err := c.upload(t.Context(), nil, pipe, "/tmp/"); err == nil || !strings.Contains(err.Error(), pipe) {
		t.Errorf("copy of a fifo: %v", err)
	}
	if err := c.uploadTree(t.Context(), dir, "/tmp"); err == nil || !strings.Contains(err.Error(), pipe) {
		t.Errorf("copy of a directory with a fifo: %v", err)
	}
	for arg, want := range map[string]bool{
		"web:/tmp": true, "sbx:/a:b": true, "./a:b": false, "/a:b": false, "a": false, ":x": false, "-": false,
	} {
		if _, _, ok := inSandbox(arg); ok != want {
			t.Errorf("inSandbox(%q) = %v", arg, ok)
		}
	}
}
