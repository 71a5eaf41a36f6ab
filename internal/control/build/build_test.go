package build_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

const simple = `FROM base
ENV COLOR=red
WORKDIR /srv
COPY app.txt dir ./
RUN echo $COLOR > made
RUN cat app.txt
CMD ["echo", "it's up"]
`

func TestDockerfile(t *testing.T) {
	w := newFixture(t, nil)
	files := map[string]string{"app.txt": "app\n", "dir/inner": "inner\n"}
	b, log := w.mustBuild(dockerfileOf("app", simple), files)
	if b.Steps != 4 || b.StepsDone != 4 || b.StepsCached != 0 || b.Attempt != 1 || b.EndedAt == nil || b.Bytes == 0 {
		t.Errorf("got build %+v, want 4 of 4 steps done in one attempt", b)
	}
	for _, want := range []string{"4/4 RUN cat app.txt | app", "publish start | echo 'it's up'",
		"template app is ready"} {
		if !strings.Contains(strings.ReplaceAll(log, `'\''`, "'"), want) {
			t.Errorf("got a log without %q:\n%s", want, log)
		}
	}
	if got := w.readFile("app", "/srv/made"); got != "red\n" {
		t.Errorf("got %q in /srv/made, want %q", got, "red\n")
	}
	if got := w.readFile("app", "/srv/inner"); got != "inner\n" {
		t.Errorf("got %q in /srv/inner, want %q", got, "inner\n")
	}
	w.checkClean(1)
	tpl, err := w.templates.Get(t.Context(), alice, "app")
	if err != nil || tpl.User != "user" || tpl.Workdir != "/srv" || tpl.Env["COLOR"] != "red" || tpl.Base != "base" ||
		len(tpl.Versions) != 1 {
		t.Errorf("Get(app) = %+v, %v; want user, workdir, environment and base of the Dockerfile", tpl, err)
	}
	// The same request builds nothing; with another last step, only that one runs.
	again := w.enqueue(dockerfileOf("app", simple), files)
	if !again.Reused || again.ID != b.ID {
		t.Errorf("the same build again: got %+v, want build %s reused", again, b.ID)
	}
	c, log := w.mustBuild(dockerfileOf("app", strings.Replace(simple, "RUN cat app.txt", "RUN cat inner", 1)), files)
	if c.StepsCached != 3 || !strings.Contains(log, "3/4 RUN echo $COLOR > made | cached") ||
		!strings.Contains(log, "4/4 RUN cat inner | inner") {
		t.Errorf("with another last step: got %+v, want 3 cached steps\n%s", c, log)
	}
	// With a changed file, the step that copies it runs, and all after it.
	files["app.txt"] = "other\n"
	if d, log := w.mustBuild(dockerfileOf("app", simple), files); d.StepsCached != 1 ||
		!strings.Contains(log, "4/4 RUN cat app.txt | other") {
		t.Errorf("with a changed file: got %+v, want 1 cached step\n%s", d, log)
	}
	w.checkClean(3)
}

// TestReuseFollowsReferences repeats a request after its base has changed: it is built again.
func TestReuseFollowsReferences(t *testing.T) {
	w := newFixture(t, nil)
	holds := func(name, want string) {
		t.Helper()
		if got := w.readFile(name, "/etc/os"); got != want {
			t.Errorf("got %q in %s, want %q", got, name, want)
		}
	}
	put := func(ref, digest, text string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.images[ref] = image{digest: digest, files: map[string]string{"etc/os": text}}
	}
	pinned := "img@sha256:" + strings.Repeat("a", 64)
	put("img:1", "sha256:aa", "first")
	put(pinned, "sha256:aa", "first")
	w.mustBuild(dockerfileOf("lower", "FROM img:1\nRUN echo 1\n"), nil)
	on := dockerfileOf("on", "FROM lower\nRUN echo 2\n")
	w.mustBuild(on, nil)
	if again := w.enqueue(on, nil); !again.Reused {
		t.Errorf("on the same template: got %+v, want it reused", again)
	}
	fixed := dockerfileOf("fixed", "FROM "+pinned+"\nRUN echo 3\n")
	w.mustBuild(fixed, nil)
	if again := w.enqueue(fixed, nil); !again.Reused {
		t.Errorf("on the same digest: got %+v, want it reused", again)
	}
	put("img:1", "sha256:bb", "second")
	w.mustBuild(dockerfileOf("lower", "FROM img:1\nRUN echo 1\n"), nil)
	holds("lower", "second")
	w.mustBuild(on, nil)
	holds("on", "second")
	w.mustBuild(build.Spec{BuildRequest: api.BuildRequest{Name: "plain", ImageRef: "img:1"}}, nil)
	put("img:1", "sha256:cc", "third")
	w.mustBuild(build.Spec{BuildRequest: api.BuildRequest{Name: "plain", ImageRef: "img:1", Replace: true}}, nil)
	holds("plain", "third")
}

func TestLayersArePerWorkspace(t *testing.T) {
	w := newFixture(t, nil)
	w.mustBuild(dockerfileOf("app", "FROM base\nRUN echo one\n"), nil)
	if b, _ := w.mustBuild(dockerfileOf("other", "FROM base\nRUN echo one\n"), nil); b.StepsCached != 1 {
		t.Errorf("another template of the workspace: got %+v, want 1 cached step", b)
	}
	spec := dockerfileOf("app", "FROM base\nRUN echo one\n")
	spec.NoCache = true
	if b, _ := w.mustBuild(spec, nil); b.StepsCached != 0 || b.Reused {
		t.Errorf("without the cache: got %+v, want a new build without cached steps", b)
	}
	w.checkClean(3)
}

// TestLayersArePerHostFormat changes the virtual hardware of the host: earlier layers are not used.
func TestLayersArePerHostFormat(t *testing.T) {
	w := newFixture(t, nil)
	spec := dockerfileOf("app", "FROM base\nRUN echo one\n")
	w.mustBuild(spec, nil)
	w.h.SetFormat("newer")
	if b, _ := w.mustBuild(dockerfileOf("other", spec.Dockerfile), nil); b.StepsCached != 0 {
		t.Errorf("on newer hardware: got %+v, want no cached steps", b)
	}
	w.checkClean(2)
}

func TestStages(t *testing.T) {
	w := newFixture(t, nil)
	w.images["img:1"] = image{digest: "sha256:aa", files: map[string]string{"etc/os": "img"}, config: dockerfile.Config{
		Env: map[string]string{
			"PATH":       "/bin",
			"FROM_IMAGE": "yes",
		}, User: "app", Entrypoint: []string{"echo"}, Cmd: []string{"serve"}}}
	const text = `FROM img:1 AS tools
RUN echo tool > /tool
FROM base AS unused
RUN false
FROM img:1
COPY --from=tools /tool /opt/
COPY <<EOF /note
hello
EOF
RUN echo $FROM_IMAGE > /env
`
	b, log := w.mustBuild(dockerfileOf("staged", text), nil)
	if b.Steps != 4 {
		t.Errorf("got %+v, want 4 steps, those of the unused stage left out\n%s", b, log)
	}
	for file, want := range map[string]string{"/opt/tool": "tool\n", "/note": "hello\n", "/env": "yes\n",
		"/etc/os": "img"} {
		if got := w.readFile("staged", file); got != want {
			t.Errorf("got %q in %s, want %q", got, file, want)
		}
	}
	if tpl, err := w.templates.Get(t.Context(), alice, "staged"); err != nil || tpl.User != "app" || tpl.Start != "" ||
		tpl.MemoryMB != 512 ||
		tpl.DiskMB != 4096 {
		t.Errorf("Get(staged) = %+v, %v; want user and sizes of the image", tpl, err)
	}
	c, log := w.mustBuild(dockerfileOf("staged", text+"RUN echo more\nCMD [\"run\"]\n"), nil)
	if c.StepsCached != 3 || strings.Contains(log, "imported") {
		t.Errorf("with another step: got %+v, want 3 cached steps and no import\n%s", c, log)
	}
	if tpl, err := w.templates.Get(t.Context(), alice, "staged"); err != nil || tpl.Start != "echo run" {
		t.Errorf("got start command %q, %v; want %q", tpl.Start, err, "echo run")
	}
	w.checkClean(2)
}

func TestSources(t *testing.T) {
	w := newFixture(t, nil)
	w.images["img:1"] = image{
		digest: "sha256:aa",
		files:  map[string]string{"etc/os": "img"},
		config: dockerfile.Config{Cmd: []string{"sh"}},
	}
	w.mustBuild(
		build.Spec{BuildRequest: api.BuildRequest{Name: "img", ImageRef: "img:1", SizeMB: 1024, CPU: 2, MemoryMB: 256}},
		nil,
	)
	if tpl, err := w.templates.Get(t.Context(), alice, "img"); err != nil || tpl.CPU != 2 || tpl.MemoryMB != 256 ||
		tpl.DiskMB != 1024 ||
		tpl.Start != "" {
		t.Errorf("Get(img) = %+v, %v; want the sizes of the request and no start command", tpl, err)
	}
	if got := w.readFile("img", "/etc/os"); got != "img" {
		t.Errorf("got %q in img, want img", got)
	}
	// The same template in another size.
	w.mustBuild(
		build.Spec{BuildRequest: api.BuildRequest{Name: "large", FromTemplate: "img", MemoryMB: 1024, SizeMB: 2048}},
		nil,
	)
	if tpl, err := w.templates.Get(t.Context(), alice, "large"); err != nil || tpl.CPU != 2 || tpl.MemoryMB != 1024 ||
		tpl.DiskMB != 2048 {
		t.Errorf("Get(large) = %+v, %v; want the sizes of the request", tpl, err)
	}
	w.mustBuild(dockerfileOf("scratch", "FROM scratch\nCOPY one /one\n"), map[string]string{"one": "1"})
	if got := w.readFile("scratch", "/one"); got != "1" {
		t.Errorf("got %q in scratch, want 1", got)
	}
	w.mustBuild(dockerfileOf("plain", "FROM img\nENV A=b\n"), nil)
	if got := w.readFile("plain", "/etc/os"); got != "img" {
		t.Errorf("got %q in a template without steps, want img", got)
	}
	box, err := w.boxes.Create(
		t.Context(),
		alice,
		api.CreateRequest{Template: "base", Env: map[string]string{"BOX": "1"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, memory := range []bool{false, true} {
		name := map[bool]string{false: "cold", true: "warm"}[memory]
		w.mustBuild(build.Spec{BuildRequest: api.BuildRequest{Name: name, FromSandbox: box.ID, Memory: memory}}, nil)
		if tpl, err := w.templates.Get(t.Context(), alice, name); err != nil || tpl.User != "user" ||
			tpl.Env["BOX"] != "1" ||
			tpl.CPU != 1 {
			t.Errorf("Get(%s) = %+v, %v; want user, environment and size of the sandbox", name, tpl, err)
		}
	}
	if snaps, err := w.boxes.Snapshots(t.Context(), alice, api.SnapshotFilter{}); err != nil ||
		len(snaps.Snapshots) != 0 {
		t.Errorf("got snapshots %+v, %v; want none", snaps, err)
	}
	if err := w.boxes.Delete(t.Context(), alice, box.ID); err != nil {
		t.Fatal(err)
	}
	w.checkClean(6)
}

func TestSteps(t *testing.T) {
	w := newFixture(t, nil)
	hash := strings.Repeat("ab", 32)
	if exists, err := w.HasFiles(t.Context(), alice, hash); err != nil || exists {
		t.Errorf("HasFiles before the upload = %v, %v; want false", exists, err)
	}
	if err := w.PutFiles(t.Context(), alice, hash, strings.NewReader(tarOf(t,
		map[string]string{"src/a": "A", "src/b": "B", "one.txt": "1"}))); err != nil {
		t.Fatal(err)
	}
	spec := build.Spec{
		BuildRequest: api.BuildRequest{
			Name:         "e2b",
			FromTemplate: "base",
			Start:        "echo started",
			Ready:        "true",
			Tags:         []string{"v1"},
		},
		OnBase: true,
		Steps: []build.Step{
			{Type: "ENV", Args: []string{"A", "1"}},
			{Type: "WORKDIR", Args: []string{"/app"}},
			{Type: "COPY", Args: []string{"src", "lib/", "", ""}, Files: hash},
			{Type: "COPY", Args: []string{"one.txt", "two.txt", "", ""}, Files: hash},
			{Type: "RUN", Args: []string{"echo $A > env", "root"}},
		},
	}
	b, log := w.mustBuild(spec, nil)
	if b.Steps != 4 || !strings.Contains(log, "publish start") {
		t.Errorf("got %+v, want 4 steps and the start command\n%s", b, log)
	}
	for file, want := range map[string]string{"/app/lib/a": "A", "/app/two.txt": "1", "/app/env": "1\n"} {
		if got := w.readFile("e2b:v1", file); got != want {
			t.Errorf("got %q in %s, want %q", got, file, want)
		}
	}
	spec.Steps[4].Force = true
	spec.Tags, spec.Replace = []string{"v2"}, true
	if b, _ := w.mustBuild(spec, nil); b.StepsCached != 3 {
		t.Errorf("with a forced step: got %+v, want 3 cached steps", b)
	}
	w.checkClean(2)
}
