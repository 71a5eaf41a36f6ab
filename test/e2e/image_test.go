//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pandastack/pandastack/test/nodelab"
)

// tiny is the only program of the test's root file system. As sh, it runs the commands true, echo, cat and serve.
const tiny = `package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	args := os.Args[1:]
	if len(args) == 2 && args[0] == "-c" {
		args = strings.Fields(args[1])
	}
	if len(args) > 0 && args[0] == "exec" {
		args = args[1:]
	}
	if len(args) == 0 {
		os.Exit(2)
	}
	switch args[0] {
	case "true":
	case "echo":
		fmt.Println(os.ExpandEnv(strings.Join(args[1:], " ")))
	case "cat":
		data, err := os.ReadFile(args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Stdout.Write(data)
	case "serve":
		os.WriteFile("/tmp/started", []byte("yes\n"), 0o644)
		r, _, _ := os.Pipe()
		r.Read(make([]byte, 1))
	default:
		os.Exit(127)
	}
}
`

// tinyRoot returns a root file system as a tar archive.
func tinyRoot(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(tiny), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(
		t.Context(),
		"go",
		"build",
		"-trimpath",
		"-ldflags",
		"-s -w",
		"-o",
		filepath.Join(dir, "tiny"),
		filepath.Join(dir, "main.go"),
	)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GO111MODULE=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "tiny"))
	if err != nil {
		t.Fatal(err)
	}
	var data bytes.Buffer
	out := tar.NewWriter(&data)
	add := func(h tar.Header, content []byte) {
		t.Helper()
		h.Size = int64(len(content))
		if err := out.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin/", "dev/", "etc/", "proc/", "root/", "run/", "sys/", "tmp/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/tiny", Mode: 0o755}, program)
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/sh", Linkname: "tiny"}, nil)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/motto", Mode: 0o600}, []byte("tiny\n"))
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return data.Bytes()
}

// serveImage pushes a root file system as an image to a registry in this process, and returns the image reference.
func serveImage(t *testing.T, root []byte) string {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(root)), nil },
	)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env, config.Config.WorkingDir = []string{"PATH=/bin", "MADE=image"}, "/etc"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(s.URL, "http://")+"/tiny:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

// TestImages builds templates from an image in a registry, from a root file system, and from a Dockerfile with several
// stages, and checks sandboxes of each.
func TestImages(t *testing.T) {
	dir := nodelab.DataDir(t)
	root := tinyRoot(t)
	ref := serveImage(t, root)
	host, _, _ := strings.Cut(ref, "/")
	n := nodelab.Start(t, dir, "--build-insecure", host)
	n.Bake("mini")
	for _, name := range []string{"e2eimage", "e2eroot", "e2estages"} {
		n.CLI("template", "delete", name) // may be left over from an earlier test
		t.Cleanup(func() { n.CLI("template", "delete", name) })
	}
	build := func(args ...string) {
		t.Helper()
		if r := n.CLI(append([]string{"template", "build"}, args...)...); r.Code != 0 {
			t.Fatalf("build %v: exit %d\n%s%s", args, r.Code, r.Stdout, r.Stderr)
		}
	}
	says := func(template, line, want string) {
		t.Helper()
		var s nodelab.Sandbox
		n.JSON(&s, "sandbox", "create", "--template", template)
		if got := n.Sh(s.ID, line); got != want {
			t.Errorf("output of %q in a sandbox of %s = %q, want %q", line, template, got, want)
		}
		n.JSON(nil, "sandbox", "delete", s.ID)
	}
	build("--name", "e2eimage", "--image", ref, "--disk", "256", "--memory", "128")
	says("e2eimage", "echo $MADE", "image")
	says("e2eimage", "cat motto", "tiny")
	archive := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(archive, root, 0o644); err != nil {
		t.Fatal(err)
	}
	build("--name", "e2eroot", "--rootfs", archive, "--disk", "256", "--memory", "128")
	says("e2eroot", "cat /etc/motto", "tiny")

	context := t.TempDir()
	text := "FROM " + ref + " AS tools\nRUN [\"/bin/tiny\", \"true\"]\n" +
		"FROM mini\nENV WHO=panda\nWORKDIR /srv/app\nCOPY --from=tools --chmod=755 /bin/tiny /usr/local/bin/tiny\n" +
		"RUN <<EOF\nset -e\nid -un > who\necho $WHO >> who\nEOF\nCOPY <<EOF note\nwritten here\nEOF\n" +
		"COPY --from=tools --chown=user:user /etc/motto motto\nRUN chown user .\nUSER user\n" +
		"RUN id -un > mine && cat motto >> mine\n" +
		"HEALTHCHECK CMD test -e /tmp/started\nCMD [\"/usr/local/bin/tiny\", \"serve\"]\n"
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	build("--name", "e2estages", context)
	says(
		"e2estages",
		"pwd; id -un; cat who note mine; stat -c '%U %G' motto mine; cat /tmp/started; "+
			"ps -e -o user=,args= | grep -c '^user *.usr/local/bin/tiny serve'",
		"/srv/app\nuser\nroot\npanda\nwritten here\nuser\ntiny\nuser user\nuser user\nyes\n1",
	)
	for _, name := range []string{"e2eimage", "e2eroot", "e2estages"} {
		n.JSON(nil, "template", "delete", name)
	}
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
