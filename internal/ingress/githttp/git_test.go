package githttp_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/audit"
)

func TestPushDeploysAndShowsTheBuild(t *testing.T) {
	f := newFixture(t)
	f.set(func() {
		f.lines = []api.AppLogLine{
			{Seq: 1, Level: "info", Step: "install", Line: "added 3 packages"},
			{Seq: 2, Level: "warn", Step: "install", Line: "one is old"},
			{Seq: 3, Level: "info", Step: "build", Line: "\x1b]0;owned\x07built \u202ein reverse"},
		}
	})
	head := f.git("rev-parse", "HEAD")
	out := f.git("push", f.remote(ownerKey), "main")
	contains(t, out, "remote: Deployment 1 of app shop", "main at "+head[:10], "remote: => install",
		"remote:    added 3 packages", "remote:    warn: one is old", "remote: => build", "built in reverse",
		"remote: Live at https://shop.apps.test", "[new branch]")
	if strings.ContainsAny(out, "\x07\u202e") {
		t.Errorf("control characters of a build reach the terminal: %q", out)
	}
	want := appspec.Source{Kind: appspec.SourcePush, Ref: "main", Commit: head}
	if got := f.deployments(); len(got) != 1 || got[0] != want {
		t.Errorf("deployed %+v, want %+v", got, want)
	}
	if got := f.stored("refs/heads/main"); got != head {
		t.Errorf("the repository has %q, want %s", got, head)
	}
	if out := f.git("push", f.remote(ownerKey), "main"); !strings.Contains(out, "Everything up-to-date") {
		t.Errorf("a second push: %s", out)
	}
	if got := f.deployments(); len(got) != 1 {
		t.Errorf("a push without changes was deployed: %+v", got)
	}
}

func TestPushOfFailedDeploymentSucceeds(t *testing.T) {
	f := newFixture(t)
	f.set(func() {
		f.ends = api.Deployment{Status: api.DeploymentFailed, Step: "build", Error: "npm run build failed"}
	})
	out := f.git("push", f.remote(ownerKey), "main")
	contains(t, out, "remote: Deployment 1 failed at build: npm run build failed", "[new branch]")
	f.set(func() { f.refuse = api.Errorf(api.QuotaExceeded, "20 deployments wait already") })
	f.commit("b", "2")
	out = f.git("push", f.remote(ownerKey), "main")
	contains(t, out, "remote: Branch main is stored, but not deployed: 20 deployments wait already (quota_exceeded)")
}

func TestCloneFetchAndProtocols(t *testing.T) {
	f := newFixture(t)
	head := f.git("rev-parse", "HEAD")
	f.git("push", "--quiet", f.remote(ownerKey), "main")
	for _, version := range []string{"0", "1", "2"} {
		dir := filepath.Join(t.TempDir(), "copy")
		f.git("-c", "protocol.version="+version, "clone", "--quiet", f.remote(readerKey), dir)
		if got := f.git("-C", dir, "rev-parse", "HEAD"); got != head {
			t.Errorf("version %s: cloned %q, want %s", version, got, head)
		}
	}
	dir := filepath.Join(t.TempDir(), "shallow")
	f.commit("c", "3")
	f.git("push", "--quiet", f.remote(ownerKey), "main")
	f.git("clone", "--quiet", "--depth=1", "--filter=blob:none", f.remote(readerKey), dir)
	if n := f.git("-C", dir, "rev-list", "--count", "HEAD"); n != "1" {
		t.Errorf("a shallow clone has %s commits", n)
	}
}

func TestKeys(t *testing.T) {
	f := newFixture(t)
	f.refused("the key is not valid", "push", f.remote("pds_wrong"), "main")
	f.refused("Authentication failed", "push", f.remote("pds_wrong"), "main")
	f.refused("this needs the scope lifecycle, which the key pds_reader lacks", "push", f.remote(readerKey), "main")
	f.refused("app shop not found", "push", f.remote(otherKey), "main")
	f.refused("terminal prompts disabled", "push", f.url+"/git/shop.git", "main")
	f.refused("not found", "ls-remote", strings.Replace(f.remote(ownerKey), "shop", "nothing", 1))
	if got := f.deployments(); len(got) != 0 || f.stored("refs/heads/main") != "" {
		t.Errorf("deployed %+v", got)
	}
	f.git("push", "--quiet", f.remote(ownerKey), "main")
	var pushes, refused int
	var audited []audit.Entry
	f.set(func() { audited = f.audited })
	for _, e := range audited {
		if e.Target != string(f.app.ID) && e.Target != "shop" && e.Target != "nothing" || e.Remote == "" {
			t.Errorf("recorded without what it was for: %+v", e)
		}
		switch {
		case e.Action == "POST /git/{app}/git-receive-pack" && e.Outcome == "ok":
			pushes++
		case e.Outcome == string(api.Forbidden) || e.Outcome == string(api.Unauthenticated):
			refused++
		}
	}
	if pushes != 1 || refused < 3 {
		t.Errorf("recorded %d pushes and %d refusals: %+v", pushes, refused, audited)
	}
}

// TestFirstRequestIsNoFailure: git asks without a key first, which must not lock its address out.
func TestFirstRequestIsNoFailure(t *testing.T) {
	f := newFixture(t)
	for range 40 {
		res, err := http.Get(f.url + "/git/shop.git/info/refs?service=git-upload-pack") //nolint:noctx // a test's
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		scheme := res.Header.Get("WWW-Authenticate")
		if res.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(scheme, "Basic ") {
			t.Fatalf("status %d, %q", res.StatusCode, scheme)
		}
	}
	f.git("push", "--quiet", f.remote(ownerKey), "main")
}

func TestForcePush(t *testing.T) {
	f := newFixture(t)
	f.git("push", "--quiet", f.remote(ownerKey), "main")
	f.git("commit", "--quiet", "--amend", "--message", "rewritten")
	f.refused("rejected", "push", f.remote(ownerKey), "main")
	f.git("push", "--quiet", "--force", f.remote(ownerKey), "main")
	if got, want := f.stored("refs/heads/main"), f.git("rev-parse", "HEAD"); got != want {
		t.Errorf("the repository has %s, want %s", got, want)
	}
	if got := f.deployments(); len(got) != 2 {
		t.Errorf("%d deployments, want 2", len(got))
	}
}

func TestOtherRefsAreStored(t *testing.T) {
	f := newFixture(t)
	f.git("push", "--quiet", f.remote(ownerKey), "main")
	out := f.git("push", f.remote(ownerKey), "main:feature")
	contains(t, out, "remote: Branch feature is stored. App shop is deployed from main or master.")
	f.git("tag", "v1")
	contains(t, f.git("push", f.remote(ownerKey), "v1"), "remote: Tag v1 is stored.")
	contains(t, f.git("push", f.remote(ownerKey), ":feature"), "refs/heads/feature is deleted")
	if f.stored("refs/heads/feature") != "" || f.stored("refs/tags/v1") == "" {
		t.Error("the repository does not have what was pushed")
	}
	f.refused("only branches (refs/heads/...) and tags (refs/tags/...)", "push", f.remote(ownerKey),
		"main:refs/notes/commits")
	f.refused("first branch of the repository", "push", f.remote(ownerKey), ":main")
	if got := f.deployments(); len(got) != 1 {
		t.Errorf("%d deployments, want 1: %+v", len(got), got)
	}
	f.set(func() { f.app.GitBranch = "release" })
	contains(t, f.git("push", f.remote(ownerKey), "main:release"), "remote: Deployment 2 of app shop")
	f.set(func() { f.app.AutoDeploy = false })
	f.commit("d", "4")
	contains(t, f.git("push", f.remote(ownerKey), "main:release"), "auto_deploy is off")
	if got := f.deployments(); len(got) != 2 {
		t.Errorf("%d deployments, want 2: %+v", len(got), got)
	}
}

func TestAppOfAnotherSource(t *testing.T) {
	f := newFixture(t)
	f.set(func() { f.app.GitURL = "https://example.com/shop.git" })
	f.refused("app shop is deployed from https://example.com/shop.git", "push", f.remote(ownerKey), "main")
}

func TestPushTooLarge(t *testing.T) {
	f := newFixture(t)
	noise := make([]byte, pushMiB<<20+64<<10)
	_, _ = rand.Read(noise)
	f.commit("large", string(noise))
	f.refused("The push is refused: it has more than 1 MiB", "push", f.remote(ownerKey), "main")
	if f.stored("refs/heads/main") != "" || len(f.deployments()) != 0 {
		t.Error("the push was taken")
	}
	f.git("reset", "--quiet", "--hard", "HEAD~1")
	f.git("push", "--quiet", f.remote(ownerKey), "main") // the repository is as before
}

// TestPushFarTooLarge: the client is cut off before the server has read all.
func TestPushFarTooLarge(t *testing.T) {
	f := newFixture(t)
	noise := make([]byte, 12<<20)
	_, _ = rand.Read(noise)
	f.commit("large", string(noise))
	if out, err := f.try("push", f.remote(ownerKey), "main"); err == nil {
		t.Errorf("the push was taken: %s", out)
	}
	if f.stored("refs/heads/main") != "" || len(f.deployments()) != 0 {
		t.Error("the push was taken")
	}
}

func TestHostileObjectsAreRefused(t *testing.T) {
	for name, make := range map[string]func(f *fixture) string{
		// A submodule whose URL is an option of git (CVE-2018-17456).
		"gitmodules": func(f *fixture) string {
			f.commit(".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = -u./payload\n")
			return f.git("rev-parse", "HEAD")
		},
		// A submodule whose name leads out of .git/modules (CVE-2018-11235).
		"name of a submodule": func(f *fixture) string {
			f.commit(".gitmodules", "[submodule \"../../hooks\"]\n\tpath = x\n\turl = https://example.com/x\n")
			return f.git("rev-parse", "HEAD")
		},
		// A tree with a directory .git.
		"tree": func(f *fixture) string {
			blob := f.git("hash-object", "-w", "index.html")
			raw, _ := hex.DecodeString(blob)
			path := filepath.Join(f.t.TempDir(), "tree")
			err := os.WriteFile(path, append([]byte("100644 .git\x00"), raw...), 0o600)
			if err != nil {
				f.t.Fatal(err)
			}
			tree := f.git("hash-object", "-w", "-t", "tree", "--literally", path)
			return f.git("commit-tree", tree, "-m", "hostile")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			commit := make(f)
			f.refused("The push is refused: an object in it is malformed or could harm", "push", f.remote(ownerKey),
				commit+":refs/heads/main")
			if f.stored("refs/heads/main") != "" || len(f.deployments()) != 0 {
				t.Error("the push was taken")
			}
		})
	}
}

func TestMachineThatCannotBeMade(t *testing.T) {
	f := newFixture(t)
	f.machines.Locked(func() { f.machines.Fail["create"] = api.Errorf(api.NoSpace, "the host is full") })
	f.refused("the host is full (", "push", f.remote(ownerKey), "main")
	f.machines.Locked(func() { delete(f.machines.Fail, "create") })
	f.git("push", "--quiet", f.remote(ownerKey), "main")
}

func TestOldAndBrokenClients(t *testing.T) {
	f := newFixture(t)
	f.git("push", "--quiet", f.remote(ownerKey), "main")
	zip := func(text string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(text))
		_ = z.Close()
		return b.String()
	}
	receive, kind := "/git/shop.git/git-receive-pack", "application/x-git-receive-pack-request"
	zero, one := strings.Repeat("0", 40), strings.Repeat("1", 40)
	text := one + " " + zero + " refs/heads/nothing\x00report-status"
	plain, refs := fmt.Sprintf("%04x%s0000", len(text)+4, text), "/git/shop.git/info/refs"
	for name, c := range map[string]struct {
		method, path, kind, encoding, body string
		status                             int
		want                               string
	}{
		"probe":            {"POST", receive, kind, "", "0000", 200, ""},
		"zipped probe":     {"POST", receive, kind, "gzip", zip("0000"), 200, ""},
		"not zipped":       {"POST", receive, kind, "gzip", "0000", 400, "gzip"},
		"unknown encoding": {"POST", receive, kind, "br", "0000", 400, "Content-Encoding"},
		"a form":           {"POST", receive, "application/x-www-form-urlencoded", "", "0000", 400, "Content-Type"},
		"no packets":       {"POST", receive, kind, "", "hello", 400, "packet line"},
		"cut off":          {"POST", receive, kind, "", "00ff", 400, "packet line"},
		"without bands":    {"POST", receive, kind, "", plain, 200, "refs/heads/nothing"},
		"dumb client":      {"GET", refs, "", "", "", 400, "smart HTTP"},
		"other service":    {"GET", refs + "?service=git-upload-archive", "", "", "", 404, "no such path"},
		"a file":           {"GET", "/git/shop.git/config", "", "", "", 404, "no such path"},
		"outside":          {"GET", "/git/..%2fetc.git/info/refs?service=git-upload-pack", "", "", "", 404, "no such"},
		"another method":   {"PUT", receive, kind, "", "", 405, "PUT"},
		"no repository":    {"GET", "/git/shop", "", "", "", 404, "no such repository"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, f.url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("x", ownerKey)
		r.Header.Set("Content-Type", c.kind)
		if c.encoding != "" {
			r.Header.Set("Content-Encoding", c.encoding)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != c.status || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: status %d, %v, %q; want %d and %q", name, res.StatusCode, err, body, c.status, c.want)
		}
	}
	if got := f.deployments(); len(got) != 1 {
		t.Errorf("%d deployments, want 1", len(got))
	}
}
