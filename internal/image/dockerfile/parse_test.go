package dockerfile_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

func parse(t *testing.T, text string, opt dockerfile.Options) *dockerfile.Plan {
	t.Helper()
	opt.Platform = "linux/amd64"
	plan, err := dockerfile.Parse([]byte(text), opt)
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	return plan
}

const single = `# syntax=docker/dockerfile:1
ARG BASE=base
FROM ${BASE}:1 AS app
ARG VERSION=3 EMPTY
ENV A=1 B="two words" PATH=/opt/bin:$PATH
LABEL org.example.name=x
WORKDIR /srv
RUN echo $A $VERSION
USER daemon
WORKDIR app
COPY --chown=1:2 --chmod=0640 a.txt b/ ./
RUN ["ls", "-l"]
EXPOSE 80 8000-8002/udp 80
HEALTHCHECK --interval=2s --retries=3 CMD curl -f localhost
STOPSIGNAL SIGINT
ENTRYPOINT ["/srv/app"]
CMD ["--port", "80"]
`

func singlePlan(t *testing.T) dockerfile.Stage {
	t.Helper()
	plan := parse(t, single, dockerfile.Options{Args: map[string]string{"BASE": "debian"},
		Base: func(ref string) (dockerfile.Base, error) {
			if ref != "debian:1" {
				return dockerfile.Base{}, fmt.Errorf("got reference %s, want debian:1", ref)
			}
			env := map[string]string{"PATH": "/bin", "HOME_OF": "x"}
			return dockerfile.Base{Config: dockerfile.Config{Env: env, Cmd: []string{"old"}}}, nil
		}})
	if len(plan.Stages) != 1 || plan.Target != 0 {
		t.Fatalf("got %d stages, target %d; want 1 stage, target 0", len(plan.Stages), plan.Target)
	}
	return plan.Stages[0]
}

func TestSteps(t *testing.T) {
	s := singlePlan(t)
	if s.From.Kind != dockerfile.FromReference || s.From.Ref != "debian:1" || s.Name != "app" {
		t.Errorf("got stage %s from %+v, want app from debian:1", s.Name, s.From)
	}
	var kinds []string
	for _, step := range s.Steps {
		kinds = append(kinds, fmt.Sprintf("%d:%s", step.Line, step.Kind))
	}
	if got := strings.Join(kinds, " "); got != "7:dir 8:run 10:dir 11:copy 12:run" {
		t.Errorf("got steps %s, want dir, run, dir, copy, run", got)
	}
	run := s.Steps[1]
	if got := run.Run.Argv; !slices.Equal(got, []string{"/bin/sh", "-c", "echo $A $VERSION"}) {
		t.Errorf("got argv %q, want the default shell", got)
	}
	for name, want := range map[string]string{"A": "1", "B": "two words", "PATH": "/opt/bin:/bin", "VERSION": "3",
		"HOME_OF": "x"} {
		if got := run.Env[name]; got != want {
			t.Errorf("got %s=%q, want %q", name, got, want)
		}
	}
	if _, ok := run.Env["EMPTY"]; ok {
		t.Error("got an argument without a value in the environment, want none")
	}
	cp := s.Steps[3]
	if cp.Workdir != "/srv/app" || cp.User != "daemon" || cp.Copy.Dest != "/srv/app/" || cp.Copy.Chown != "1:2" ||
		cp.Copy.Chmod != "0640" || cp.Copy.From != -1 || !slices.Equal(cp.Copy.Sources, []string{"a.txt", "b/"}) {
		t.Errorf("got copy %+v in %s as %s, want that of the Dockerfile", cp.Copy, cp.Workdir, cp.User)
	}
}

func TestConfig(t *testing.T) {
	c := singlePlan(t).Config
	if _, ok := c.Env["VERSION"]; ok {
		t.Error("got an argument in the configuration, want none")
	}
	if got := strings.Join(c.Expose, " "); got != "80/tcp 8000/udp 8001/udp 8002/udp" {
		t.Errorf("got ports %s, want 80/tcp and 8000 to 8002/udp", got)
	}
	if c.Health == nil || c.Health.Retries != 3 || c.Health.Argv[2] != "curl -f localhost" ||
		c.StopSignal != "SIGINT" ||
		c.Labels["org.example.name"] != "x" || c.Workdir != "/srv/app" ||
		c.User != "daemon" ||
		!slices.Equal(c.Entrypoint, []string{"/srv/app"}) ||
		!slices.Equal(c.Cmd, []string{"--port", "80"}) {
		t.Errorf("got config %+v, want that of the Dockerfile", c)
	}
}

func TestStages(t *testing.T) {
	text := `FROM base AS Deps
ARG TOOL=go
RUN install $TOOL
FROM unused-ref AS unused
RUN --mount=type=cache,target=/x never
FROM deps AS build
RUN make $TOOL
FROM scratch
COPY --from=build /out /out
COPY --from=0 /etc/x /x
COPY --from=registry.example.com/tool:1 /bin/tool /bin/
`
	resolved := map[string]int{}
	plan := parse(t, text, dockerfile.Options{Base: func(ref string) (dockerfile.Base, error) {
		resolved[ref]++
		return dockerfile.Base{}, nil
	}})
	var got []string
	for _, s := range plan.Stages {
		got = append(got, fmt.Sprintf("%s/%s/%s/%d", s.Name, s.From.Kind, s.From.Ref, s.From.Stage))
	}
	want := "deps/reference/base/0 build/stage//0 /reference/registry.example.com/tool:1/0 /scratch//0"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got %s\nwant %s", s, want)
	}
	if resolved["unused-ref"] != 0 || resolved["base"] != 1 {
		t.Errorf("got resolved references %v, want base once and unused-ref never", resolved)
	}
	last := plan.Stages[plan.Target]
	if a, b, c := last.Steps[0].Copy.From, last.Steps[1].Copy.From, last.Steps[2].Copy.From; a != 1 || b != 0 ||
		c != 2 {
		t.Errorf("got copies from stages %d %d %d, want 1 0 2", a, b, c)
	}
	if got := plan.Stages[1].Steps[0].Env["TOOL"]; got != "go" {
		t.Errorf("got inherited argument %q, want go", got)
	}
	plan = parse(t, text, dockerfile.Options{Target: "DEPS"})
	if len(plan.Stages) != 1 || plan.Stages[0].Name != "deps" {
		t.Errorf("target deps: got stages %+v, want deps alone", plan.Stages)
	}
}

func TestHereDocuments(t *testing.T) {
	plan := parse(t, `FROM base
ENV NAME=joe
RUN <<EOF
echo one
echo two $NAME
EOF
RUN <<-'END'
	#!/usr/bin/env python3
	print(1)
	END
RUN cat <<A > /x && cat <<B > /y
a
A
b
B
COPY <<one <<"two" /etc/
hello $NAME
one
hello $NAME
two
SHELL ["/bin/bash", "-ec"]
RUN true
`, dockerfile.Options{})
	steps := plan.Stages[0].Steps
	if got := steps[0].Run.Argv[2]; got != "echo one\necho two $NAME\n" {
		t.Errorf("got command %q, want the here-document unexpanded", got)
	}
	if r := steps[1].Run; r.Script != "#!/usr/bin/env python3\nprint(1)\n" || r.ScriptPath == "" ||
		r.Argv[2] != r.ScriptPath {
		t.Errorf("got %+v, want a script", r)
	}
	if got := steps[2].Run.Argv[2]; got != "cat <<A > /x && cat <<B > /y\na\nA\nb\nB" {
		t.Errorf("got command %q, want both here-documents in it", got)
	}
	want := []dockerfile.File{{Name: "one", Data: "hello joe\n"}, {Name: "two", Data: "hello $NAME\n"}}
	if got := steps[3].Copy.Files; !slices.Equal(got, want) {
		t.Errorf("got files %+v, want %+v", got, want)
	}
	if got := steps[4].Run.Argv; !slices.Equal(got, []string{"/bin/bash", "-ec", "true"}) {
		t.Errorf("got argv %q, want that of SHELL", got)
	}
}

func TestArguments(t *testing.T) {
	text := `ARG GLOBAL=g
ARG DERIVED=${GLOBAL}x
FROM --platform=$BUILDPLATFORM base
ARG GLOBAL
ARG OWN=o
ARG TARGETARCH
ENV X=${OWN:-none}${UNSET:+never}${DERIVED}
ARG DERIVED
RUN true
`
	args := map[string]string{"OWN": "mine", "HTTP_PROXY": "http://proxy.example.com", "STRAY": "1"}
	plan := parse(t, text, dockerfile.Options{Args: args})
	s := plan.Stages[0].Steps[0]
	for name, want := range map[string]string{"GLOBAL": "g", "OWN": "mine", "TARGETARCH": "amd64", "X": "mine",
		"DERIVED": "gx"} {
		if got := s.Env[name]; got != want {
			t.Errorf("got %s=%q, want %q", name, got, want)
		}
	}
	if s.Run.Proxy["HTTP_PROXY"] == "" || s.Env["HTTP_PROXY"] != "" {
		t.Errorf("got proxy %v and environment %v, want HTTP_PROXY in the first only", s.Run.Proxy, s.Env)
	}
	if got := strings.Join(plan.Warnings, "\n"); !strings.Contains(got, "STRAY") || strings.Contains(got, "PROXY") {
		t.Errorf("got warnings %s, want one about STRAY", got)
	}
}

func TestOnBuild(t *testing.T) {
	plan := parse(t, "FROM base\nRUN after\n", dockerfile.Options{Base: func(string) (dockerfile.Base, error) {
		return dockerfile.Base{OnBuild: []string{"COPY . /app", "RUN first"}}, nil
	}})
	steps := plan.Stages[0].Steps
	if len(steps) != 3 || steps[0].Kind != dockerfile.KindCopy || steps[1].Run.Argv[2] != "first" ||
		steps[2].Run.Argv[2] != "after" {
		t.Errorf("got steps %+v, want the ONBUILD instructions first", steps)
	}
}

func TestRefusals(t *testing.T) {
	for _, row := range []struct {
		name, text  string
		line        int
		instruction string
		unsupported bool
		message     string
	}{
		{"empty", "", 0, "", false, "no instructions"},
		{"no-from", "RUN x", 1, "RUN", false, "before the first FROM"},
		{"unknown", "FROM a\nFRUN x", 2, "", false, "FRUN"},
		{"mount", "FROM a\n\nRUN --mount=type=cache,target=/c x", 3, "RUN", true, "--mount"},
		{"network", "FROM a\nRUN --network=host x", 2, "RUN", true, "--network"},
		{"security", "FROM a\nRUN --security=insecure x", 2, "RUN", true, "--security"},
		{"device", "FROM a\nRUN --device=gpu x", 2, "RUN", true, "--device"},
		{"onbuild", "FROM a\nONBUILD RUN x", 2, "ONBUILD", true, ""},
		{"url", "FROM a\nADD https://example.com/x /x", 2, "ADD", true, "remote"},
		{"git", "FROM a\nADD git@example.com:x/y.git /x", 2, "ADD", true, "remote"},
		{"copy-url", "FROM a\nCOPY https://example.com/x /x", 2, "COPY", false, "COPY takes files"},
		{"platform", "FROM --platform=linux/s390x a", 1, "FROM", true, "s390x"},
		{"escape", "FROM a\nCOPY ../x /x", 2, "COPY", false, "outside"},
		{"escape-inside", "FROM a\nCOPY a/../../x /x", 2, "COPY", false, "outside"},
		{"many-to-one", "FROM a\nCOPY a b /x", 2, "COPY", false, "must end in /"},
		{"chmod", "FROM a\nCOPY --chmod=u+x a /x", 2, "COPY", true, "octal"},
		{"chown", "FROM a\nCOPY --chown=a:b:c a /x", 2, "COPY", false, "--chown"},
		{"later-stage", "FROM a AS one\nCOPY --from=two /x /x\nFROM b AS two\nCOPY --from=one / /", 2, "COPY", false,
			"before"},
		{"own-stage", "FROM a AS one\nCOPY --from=one /x /x", 2, "COPY", false, "before"},
		{"no-stage", "FROM a\nCOPY --from=7 /x /x", 2, "COPY", false, "no such stage"},
		{"empty-from", "ARG X\nFROM $X", 2, "FROM", false, "empty"},
		{"empty-workdir", "FROM a\nWORKDIR $X", 2, "WORKDIR", false, "path is empty after variable expansion"},
		{"bad-substitution", "FROM a\nENV X=${", 2, "ENV", false, "'}'"},
		{"required", "FROM a\nWORKDIR ${X:?must be there}", 2, "WORKDIR", false, "must be there"},
		{"heredoc", "FROM a\nRUN <<EOF\nx", 2, "", false, "unterminated"},
		{"shell", "FROM a\nSHELL bash", 2, "SHELL", false, "JSON"},
		{"user", "FROM a\nUSER a b", 2, "USER", false, "user"},
		{"port", "FROM a\nEXPOSE 99999", 2, "EXPOSE", false, "port"},
		{"flag", "FROM a\nCOPY --nope a /x", 2, "COPY", false, "nope"},
		{"zero", "FROM a\nRUN x\x00", 2, "", false, "zero byte"},
		{"doubling", "FROM a\nENV A=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n" + strings.Repeat("ENV A=$A$A$A$A$A$A$A$A\n",
			8), 0, "ENV", false, "large"},
		{"port-work", "FROM a\n" + strings.Repeat("EXPOSE 1-1000\n", 15000), 22, "EXPOSE", false, "ports in all"},
		{"pattern-work", "FROM a\nENV A=" + strings.Repeat("x", 60000) + "\n" +
			strings.Repeat("ENV B=${A%%*x*x*x*x*x*y}\n", 5000), 0, "ENV", false, "large"},
		{"replace-bomb", "FROM a\nENV A=${A//x/${B//y/$C}}", 2, "ENV", false, "only one"},
		{"many-stages", strings.Repeat("FROM a\n", 300), 201, "FROM", false, "stages"},
		{"many-steps", "FROM a\n" + strings.Repeat("RUN x\n", 1200), 1002, "RUN", false, "steps"},
		{"large", "FROM a\n#" + strings.Repeat("x", dockerfile.MaxText), 0, "", false, "larger"},
		{"long-line", "FROM a\nRUN " + strings.Repeat("x", 70000), 0, "", false, "line"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := dockerfile.Parse([]byte(row.text), dockerfile.Options{})
			e, ok := errors.AsType[*dockerfile.Error](err)
			if !ok {
				t.Fatalf("got %v, want an Error", err)
			}
			if row.line != 0 && e.Line != row.line || e.Instruction != row.instruction ||
				e.Unsupported != row.unsupported ||
				!strings.Contains(e.Message, row.message) {
				t.Errorf("got %+v (%v), want %s at line %d with %q, unsupported %v",
					*e, e, row.instruction, row.line, row.message, row.unsupported)
			}
		})
	}
}

func TestPlatformNames(t *testing.T) {
	for _, name := range []string{"linux/amd64", "amd64", "linux/x86_64", "Linux/AMD64"} {
		parse(t, "FROM --platform="+name+" a\n", dockerfile.Options{})
	}
}

// TestManyPorts exposes the same ports many times.
func TestManyPorts(t *testing.T) {
	c := parse(t, "FROM a\n"+strings.Repeat("EXPOSE 1-1000\n", 15), dockerfile.Options{}).Stages[0].Config
	if len(c.Expose) != 1000 || !slices.IsSorted(c.Expose) {
		t.Errorf("got %d ports, want 1000 sorted ones", len(c.Expose))
	}
}

func TestBaseError(t *testing.T) {
	cause := "no such template"
	_, err := dockerfile.Parse([]byte("\nFROM x\n"), dockerfile.Options{Base: func(string) (dockerfile.Base, error) {
		return dockerfile.Base{}, errors.New(cause)
	}})
	if want := "FROM: " + cause + " (line 2)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestKey(t *testing.T) {
	keys := map[string]string{}
	for i, text := range []string{
		"FROM a\nRUN x", "FROM a\nRUN y", "FROM a\nENV A=1\nRUN x", "FROM a\nUSER b\nRUN x", "FROM a\nRUN [\"x\"]",
		"FROM a\nARG P=1\nRUN x", "FROM a\nCOPY a b", "FROM a\nADD a b", "FROM a\nCOPY --chmod=600 a b",
		"FROM a\nCOPY a b/",
		"FROM a\nCOPY --chown=1 a b", "FROM a\nCOPY --exclude=x a b", "FROM a\nCOPY <<a b\nEND\na\n",
		"FROM a\nCOPY <<a b\nEND2\na\n",
	} {
		steps := parse(t, text, dockerfile.Options{}).Stages[0].Steps
		last := steps[len(steps)-1]
		key := last.Key("parent", "inputs")
		if other, ok := keys[key]; ok {
			t.Errorf("%q: got the key of %q, want another", text, other)
		}
		keys[key] = text
		opt := dockerfile.Options{Args: map[string]string{"http_proxy": "p"}}
		again := parse(t, "# comment\n\n"+text, opt).Stages[0].Steps
		if again[len(again)-1].Key("parent", "inputs") != key {
			t.Errorf("row %d: got another key on another line or with a proxy, want the same", i)
		}
		if last.Key("x", "inputs") == key || last.Key("parent", "x") == key || last.Key("parenti", "nputs") == key {
			t.Errorf("row %d: got the same key with another parent or input, want another", i)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("FROM a AS b\nARG X=1\nENV Y=${X:-2} Z=${Y#1}\nRUN <<EOF\nx\nEOF\nCOPY --from=b --chown=1:1 a b/\n", "X", "v")
	f.Add("# escape=`\nFROM a\nWORKDIR c:`\nHEALTHCHECK CMD x\nEXPOSE 1-9\nONBUILD RUN x\n", "", "")
	f.Add("FROM a\nADD --unpack=false x y\nVOLUME [\"/a\", \"b\"]\nSHELL [\"x\"]\nENTRYPOINT a\n", "A", "B")
	f.Fuzz(func(t *testing.T, text, name, value string) {
		plan, err := dockerfile.Parse(
			[]byte(text),
			dockerfile.Options{Args: map[string]string{name: value}, Platform: "linux/amd64"},
		)
		if err != nil {
			if _, ok := errors.AsType[*dockerfile.Error](err); !ok {
				t.Fatalf("got an error of type %T, want *Error", err)
			}
			return
		}
		for i, s := range plan.Stages {
			if s.From.Kind == dockerfile.FromStage && s.From.Stage >= i {
				t.Fatalf("stage %d is based on stage %d, want an earlier one", i, s.From.Stage)
			}
			for _, step := range s.Steps {
				if step.Copy != nil && step.Copy.From >= i || step.Workdir == "" || step.Workdir[0] != '/' {
					t.Fatalf("got step %+v in stage %d, want an earlier source and an absolute workdir", step, i)
				}
				step.Key("", "")
			}
		}
	})
}
