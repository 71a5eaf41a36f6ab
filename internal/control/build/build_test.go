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
		t.Errorf("build %+v", b)
	}
	for _, want := range []string{"4/4 RUN cat app.txt | app", "publish start | echo 'it's up'",
		"template app is ready"} {
		if !strings.Contains(strings.ReplaceAll(log, `'\''`, "'"), want) {
			t.Errorf("log lacks %q:\n%s", want, log)
		}
	}
	if got := w.readFile("app", "/srv/made"); got != "red\n" {
		t.Errorf("made holds %q", got)
	}
	if got := w.readFile("app", "/srv/inner"); got != "inner\n" {
		t.Errorf("inner holds %q", got)
	}
	w.checkClean(1)
	tpl, err := w.templates.Get(t.Context(), alice, "app")
	if err != nil || tpl.User != "user" || tpl.Workdir != "/srv" || tpl.Env["COLOR"] != "red" || tpl.Base != "base" ||
		len(tpl.Versions) != 1 {
		t.Errorf("template %+v, %v", tpl, err)
	}
	// The same again is not built; another last step begins at the layer above.
	again := w.enqueue(dockerfileOf("app", simple), files)
	if !again.Reused || again.ID != b.ID {
		t.Errorf("the same again: %+v", again)
	}
	c, log := w.mustBuild(dockerfileOf("app", strings.Replace(simple, "RUN cat app.txt", "RUN cat inner", 1)), files)
	if c.StepsCached != 3 || !strings.Contains(log, "3/4 RUN echo $COLOR > made | cached") ||
		!strings.Contains(log, "4/4 RUN cat inner | inner") {
		t.Errorf("rebuilt %+v\n%s", c, log)
	}
	// A changed file changes what copies it, and all after it.
	files["app.txt"] = "other\n"
	if d, log := w.mustBuild(dockerfileOf("app", simple), files); d.StepsCached != 1 ||
		!strings.Contains(log, "4/4 RUN cat app.txt | other") {
		t.Errorf("rebuilt %+v\n%s", d, log)
	}
	w.checkClean(3)
}

// TestReuseFollowsReferences: the same request makes something else as soon as what it begins with has moved.
func TestReuseFollowsReferences(t *testing.T) {
	w := newFixture(t, nil)
	holds := func(name, want string) {
		t.Helper()
		if got := w.readFile(name, "/etc/os"); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
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
	w.mustBuild(dockerfileOf("ground", "FROM img:1\nRUN echo 1\n"), nil)
	on := dockerfileOf("on", "FROM ground\nRUN echo 2\n")
	w.mustBuild(on, nil)
	if again := w.enqueue(on, nil); !again.Reused {
		t.Errorf("on the same template: %+v", again)
	}
	fixed := dockerfileOf("fixed", "FROM "+pinned+"\nRUN echo 3\n")
	w.mustBuild(fixed, nil)
	if again := w.enqueue(fixed, nil); !again.Reused {
		t.Errorf("on the same content: %+v", again)
	}
	put("img:1", "sha256:bb", "second")
	w.mustBuild(dockerfileOf("ground", "FROM img:1\nRUN echo 1\n"), nil)
	holds("ground", "second")
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
		t.Errorf("another template of the workspace: %+v", b)
	}
	spec := dockerfileOf("app", "FROM base\nRUN echo one\n")
	spec.NoCache = true
	if b, _ := w.mustBuild(spec, nil); b.StepsCached != 0 || b.Reused {
		t.Errorf("without the cache: %+v", b)
	}
	w.checkClean(3)
}

// TestLayersArePerHostFormat: what another virtual hardware left is not gone on from.
func TestLayersArePerHostFormat(t *testing.T) {
	w := newFixture(t, nil)
	spec := dockerfileOf("app", "FROM base\nRUN echo one\n")
	w.mustBuild(spec, nil)
	w.h.SetFormat("newer")
	if b, _ := w.mustBuild(dockerfileOf("other", spec.Dockerfile), nil); b.StepsCached != 0 {
		t.Errorf("on newer hardware: %+v", b)
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
		t.Errorf("build %+v\n%s", b, log)
	}
	for file, want := range map[string]string{"/opt/tool": "tool\n", "/note": "hello\n", "/env": "yes\n",
		"/etc/os": "img"} {
		if got := w.readFile("staged", file); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	if tpl, err := w.templates.Get(t.Context(), alice, "staged"); err != nil || tpl.User != "app" || tpl.Start != "" ||
		tpl.MemoryMB != 512 ||
		tpl.DiskMB != 4096 {
		t.Errorf("template %+v, %v", tpl, err)
	}
	c, log := w.mustBuild(dockerfileOf("staged", text+"RUN echo more\nCMD [\"run\"]\n"), nil)
	if c.StepsCached != 3 || strings.Contains(log, "imported") {
		t.Errorf("rebuilt %+v\n%s", c, log)
	}
	if tpl, err := w.templates.Get(t.Context(), alice, "staged"); err != nil || tpl.Start != "echo run" {
		t.Errorf("start %q, %v", tpl.Start, err)
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
		t.Errorf("template %+v, %v", tpl, err)
	}
	if got := w.readFile("img", "/etc/os"); got != "img" {
		t.Errorf("img holds %q", got)
	}
	// Another size of it.
	w.mustBuild(
		build.Spec{BuildRequest: api.BuildRequest{Name: "large", FromTemplate: "img", MemoryMB: 1024, SizeMB: 2048}},
		nil,
	)
	if tpl, err := w.templates.Get(t.Context(), alice, "large"); err != nil || tpl.CPU != 2 || tpl.MemoryMB != 1024 ||
		tpl.DiskMB != 2048 {
		t.Errorf("template %+v, %v", tpl, err)
	}
	w.mustBuild(dockerfileOf("scratch", "FROM scratch\nCOPY one /one\n"), map[string]string{"one": "1"})
	if got := w.readFile("scratch", "/one"); got != "1" {
		t.Errorf("scratch holds %q", got)
	}
	w.mustBuild(dockerfileOf("plain", "FROM img\nENV A=b\n"), nil)
	if got := w.readFile("plain", "/etc/os"); got != "img" {
		t.Errorf("a template without steps holds %q", got)
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
			t.Errorf("%s: template %+v, %v", name, tpl, err)
		}
	}
	if snaps, err := w.boxes.Snapshots(t.Context(), alice, api.SnapshotFilter{}); err != nil ||
		len(snaps.Snapshots) != 0 {
		t.Errorf("snapshots are left: %+v, %v", snaps, err)
	}
	if err := w.boxes.Delete(t.Context(), alice, box.ID); err != nil {
		t.Fatal(err)
	}
	w.checkClean(6)
}

func TestSteps(t *testing.T) {
	w := newFixture(t, nil)
	hash := strings.Repeat("ab", 32)
	if there, err := w.HasFiles(t.Context(), alice, hash); err != nil || there {
		t.Errorf("files are there: %v, %v", there, err)
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
		t.Errorf("build %+v\n%s", b, log)
	}
	for file, want := range map[string]string{"/app/lib/a": "A", "/app/two.txt": "1", "/app/env": "1\n"} {
		if got := w.readFile("e2b:v1", file); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	spec.Steps[4].Force = true
	spec.Tags, spec.Replace = []string{"v2"}, true
	if b, _ := w.mustBuild(spec, nil); b.StepsCached != 3 {
		t.Errorf("with a forced step: %+v", b)
	}
	w.checkClean(2)
}
