package build_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/quota/quotatest"
)

// zeroBytes returns n bytes.
func zeroBytes(n int64) io.Reader { return io.LimitReader(zeros{}, n) }

// charged returns what a workspace uses of a kind, in its unit.
func (w *fixture) charged(p auth.Principal, kind quota.Kind) int64 {
	w.t.Helper()
	return quotatest.Used(w.t, w.quotas, p.Workspace, kind)
}

// refused checks that a quota refused a request.
func refused(t *testing.T, err error, kind quota.Kind) {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.QuotaExceeded || e.Details["kind"] != kind {
		t.Errorf("got %v, want quota_exceeded of %s", err, kind)
	}
}

func hashOf(n int) string { return fmt.Sprintf("%064x", n) }

// spool returns the files of uploads under way.
func (w *fixture) spool() []string {
	w.t.Helper()
	names, err := filepath.Glob(filepath.Join(w.dir, "builds", "spool", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

// TestUploadQuota: files by hash and contexts of builds are charged as they grow. One that is refused leaves neither a
// file nor a charge, and one that replaces another is charged once.
func TestUploadQuota(t *testing.T) {
	w := newFixture(t, nil)
	ctx := t.Context()
	w.allow(alice, quota.Uploads, 40)
	put := func(n int, mib int64) error { return w.PutFiles(ctx, alice, hashOf(n), zeroBytes(mib<<20)) }
	for n := range 3 {
		if err := put(n, 10); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, put(3, 30), quota.Uploads)
	if got := w.charged(alice, quota.Uploads); got != 30 {
		t.Errorf("three files of 10 MiB are charged with %d MiB", got)
	}
	if there, err := w.HasFiles(ctx, alice, hashOf(3)); err != nil || there || len(w.spool()) != 0 {
		t.Errorf("a refused file is there: %v, %v; spool %v", there, err, w.spool())
	}
	if err := put(0, 5); err != nil || w.charged(alice, quota.Uploads) != 25 {
		t.Errorf("after one was replaced by 5 MiB: %v, %d MiB charged, want 25", err, w.charged(alice, quota.Uploads))
	}
	u := w.files(map[string]string{"small": "x"})
	refused(t, u.AddFile("large", zeroBytes(17<<20)), quota.Uploads)
	if err := u.Close(); err != nil || w.charged(alice, quota.Uploads) != 25 || len(w.spool()) != 0 {
		t.Errorf("a refused context: %v, %d MiB charged, spool %v", err, w.charged(alice, quota.Uploads), w.spool())
	}
	if err := w.PutFiles(ctx, eve, hashOf(0), zeroBytes(20<<20)); err != nil {
		t.Errorf("the quota of another workspace: %v", err)
	}
}

// TestUploadQuotaRace sends many uploads at once: no more than the quota allows is on the disk at any time. Those
// that are refused halfway may have kept others out, and leave nothing: the rest can be used up afterwards.
func TestUploadQuotaRace(t *testing.T) {
	w := newFixture(t, nil)
	w.allow(alice, quota.Uploads, 32)
	var made atomic.Int32
	var wg sync.WaitGroup
	for n := range 12 {
		wg.Go(func() {
			err := w.PutFiles(t.Context(), alice, hashOf(n), zeroBytes(8<<20))
			if err == nil {
				made.Add(1)
			} else if api.CodeOf(err) != api.QuotaExceeded {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := int(made.Load())
	if charged := w.charged(alice, quota.Uploads); n > 4 || int(charged) != 8*n {
		t.Fatalf("%d uploads of 8 MiB succeeded, %d MiB are charged; want at most 4, and 8 MiB each", n, charged)
	}
	for ; n < 4; n++ {
		if err := w.PutFiles(t.Context(), alice, hashOf(100+n), zeroBytes(8<<20)); err != nil {
			t.Errorf("upload %d of 4, after all others have ended: %v", n+1, err)
		}
	}
	refused(t, w.PutFiles(t.Context(), alice, hashOf(200), zeroBytes(8<<20)), quota.Uploads)
}

// TestInputIsCharged: the input of a build is charged until it is removed; one that is not used is not charged.
func TestInputIsCharged(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.Parallel = 1 })
	g := w.blockCreates()
	spec := dockerfileOf("a", "FROM base\nCOPY f /f\n")
	files := map[string]string{"f": strings.Repeat("x", 3<<20)}
	b := w.enqueue(spec, files)
	<-g.arrived
	if got := w.charged(alice, quota.Uploads); got != 4 { // and its tar headers
		t.Errorf("a context of a little over 3 MiB is charged with %d MiB", got)
	}
	if again := w.enqueue(spec, files); again.ID != b.ID || w.charged(alice, quota.Uploads) != 4 {
		t.Errorf("after an equal request, reused %v, %d MiB are charged", again.Reused,
			w.charged(alice, quota.Uploads))
	}
	close(g.open)
	if done, log := w.wait(b.ID); done.Status != api.BuildDone {
		t.Fatalf("%+v\n%s", done, log)
	}
	if got := w.charged(alice, quota.Uploads); got != 0 {
		t.Errorf("after the build %d MiB are charged", got)
	}
}

// TestImageLayersAreCharged: layers of an image are charged while a build downloads them.
func TestImageLayersAreCharged(t *testing.T) {
	w := newFixture(t, nil)
	w.images["img:1"] = image{digest: "sha256:1", files: map[string]string{"etc/os-release": "ID=x"}, layers: 30 << 20}
	w.allow(alice, quota.Uploads, 29)
	b, _ := w.wait(w.enqueue(dockerfileOf("a", "FROM img:1\nRUN echo x > /f\n"), nil).ID)
	if b.Status != api.BuildFailed || b.Code != api.QuotaExceeded || w.charged(alice, quota.Uploads) != 0 {
		t.Errorf("got %+v with %d MiB charged, want quota_exceeded", b, w.charged(alice, quota.Uploads))
	}
	w.allow(alice, quota.Uploads, 32)
	w.mustBuild(dockerfileOf("a", "FROM img:1\nRUN echo x > /f\n"), nil)
	if got := w.charged(alice, quota.Uploads); got != 0 {
		t.Errorf("after the build %d MiB are charged", got)
	}
}

// TestReservedBuildsCount: builds that wait for their steps count as builds, and many requests at once cannot exceed
// the quota. A refused one leaves no template.
func TestReservedBuildsCount(t *testing.T) {
	w := newFixture(t, nil)
	ctx := t.Context()
	const allowed, requests = 5, 50
	w.allow(alice, quota.Builds, allowed)
	quotatest.Race(t, requests, allowed, func(n int) error {
		_, err := w.Reserve(ctx, alice, api.BuildRequest{Name: fmt.Sprint("t", n)})
		return err
	})
	if got := w.charged(alice, quota.Templates); got != allowed {
		t.Errorf("%d templates exist, want one for each build", got)
	}
	_, err := w.Start(ctx, alice, dockerfileOf("x", "FROM base\n"), nil)
	refused(t, err, quota.Builds)
	if err := w.CancelAll(ctx, alice.Workspace); err != nil || w.charged(alice, quota.Builds) != 0 {
		t.Errorf("CancelAll: %v, %d builds have not ended", err, w.charged(alice, quota.Builds))
	}
}

// TestReservedBuildStarts: a reserved build was counted already, and may start although the quota is used up.
func TestReservedBuildStarts(t *testing.T) {
	w := newFixture(t, nil)
	w.allow(alice, quota.Builds, 1)
	b, err := w.Reserve(t.Context(), alice, api.BuildRequest{Name: "app"})
	if err != nil {
		t.Fatal(err)
	}
	err = w.StartReserved(t.Context(), alice, b.ID, func(s *build.Spec) { s.FromTemplate, s.OnBase = "base", true })
	if err != nil {
		t.Fatal(err)
	}
	if done, log := w.wait(b.ID); done.Status != api.BuildDone {
		t.Errorf("%+v\n%s", done, log)
	}
}

// TestTemplateQuota: a workspace may have so many templates, and versions of them as far as its disk quota goes.
func TestTemplateQuota(t *testing.T) {
	w := newFixture(t, nil)
	ctx := t.Context()
	w.allow(alice, quota.Templates, 2)
	w.mustBuild(dockerfileOf("a", "FROM base\nRUN echo 1 > /f\n"), nil)
	w.mustBuild(dockerfileOf("b", "FROM base\nRUN echo 1 > /f\n"), nil)
	_, err := w.Start(ctx, alice, dockerfileOf("c", "FROM base\nRUN echo 1 > /f\n"), nil)
	refused(t, err, quota.Templates)
	if used := w.charged(alice, quota.Disk); used != 200 { // the simulated host publishes templates of 100 MiB
		t.Errorf("two templates use %d MiB of the disk quota, want 200", used)
	}
	w.allow(alice, quota.Disk, 299)
	b, _ := w.wait(w.enqueue(dockerfileOf("a", "FROM base\nRUN echo 2 > /f\n"), nil).ID)
	if b.Status != api.BuildFailed || b.Code != api.QuotaExceeded {
		t.Errorf("a version beyond the disk quota: %+v", b)
	}
	w.checkClean(2)
	w.allow(alice, quota.Disk, 300)
	w.mustBuild(dockerfileOf("a", "FROM base\nRUN echo 2 > /f\n"), nil)
	if err := w.templates.Delete(ctx, alice, "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Start(ctx, alice, dockerfileOf("c", "FROM base\nRUN echo 1 > /f\n"), nil); err != nil {
		t.Errorf("after one was deleted: %v", err)
	}
}

// TestSuspendedWorkspaceBuildsNothing: neither builds nor uploads of a suspended workspace are accepted.
func TestSuspendedWorkspaceBuildsNothing(t *testing.T) {
	w := newFixture(t, nil)
	ctx := t.Context()
	b, err := w.Reserve(ctx, alice, api.BuildRequest{Name: "app"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.quotas.SetSuspended(ctx, alice.Workspace, true); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"start":   func() error { _, err := w.Start(ctx, alice, dockerfileOf("x", "FROM base\n"), nil); return err },
		"reserve": func() error { _, err := w.Reserve(ctx, alice, api.BuildRequest{Name: "y"}); return err },
		"reserved": func() error {
			return w.StartReserved(ctx, alice, b.ID, func(s *build.Spec) { s.FromTemplate, s.OnBase = "base", true })
		},
		"files": func() error { return w.PutFiles(ctx, alice, hashOf(1), zeroBytes(1)) },
	} {
		if err := do(); api.CodeOf(err) != api.WorkspaceSuspended {
			t.Errorf("%s: got %v, want workspace_suspended", what, err)
		}
	}
}

// TestSpaceFollowsFiles: garbage collection charges files that an earlier version left, and ends charges of files that
// are gone, such as uploads of a killed process.
func TestSpaceFollowsFiles(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.OrphanGrace = time.Nanosecond })
	ctx := t.Context()
	w.allow(alice, quota.Uploads, 100)
	if err := w.PutFiles(ctx, alice, hashOf(1), zeroBytes(3<<20)); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(w.dir, "builds", "files", "*", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v; want one", files, err)
	}
	older := filepath.Join(filepath.Dir(files[0]), hashOf(2)+".tar")
	if err := os.WriteFile(older, make([]byte, 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	u := w.files(map[string]string{"x": strings.Repeat("x", 1<<20)})
	w.restart()
	if err := u.Close(); err == nil {
		t.Error("the upload of the killed process could write to the closed store")
	}
	w.CollectGarbage(ctx)
	if got := w.charged(alice, quota.Uploads); got != 8 {
		t.Errorf("files of 3 and 5 MiB are charged with %d MiB", got)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	w.CollectGarbage(ctx)
	if got := w.charged(alice, quota.Uploads); got != 5 {
		t.Errorf("a file of 5 MiB is charged with %d MiB", got)
	}
}
