//go:build e2e

package sdk_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCommandLine runs the published command line of the TypeScript SDK, unmodified.
func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	if _, err := command(t, dir, nil, "npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "@pandastack/sdk@0.9.0"); err != nil {
		t.Skipf("probe npm: it cannot install @pandastack/sdk: %v", err)
	}
	address, key := serve(t)
	c := &cli{t: t, dir: dir, env: append(os.Environ(), "PANDASTACK_API="+address, "PANDASTACK_API_URL="+address, "PANDASTACK_API_KEY="+key, "HOME="+dir)}
	id := c.id("sandbox", "create", "--ttl", "600", "--metadata", "a=b")
	file, local := filepath.Join(t.TempDir(), "in sandbox.txt"), filepath.Join(dir, "here.txt")
	must(t, os.WriteFile(local, []byte("local"), 0o644))
	snap := c.id("sandbox", "snapshot", id)
	for _, tt := range []struct {
		args string // {id}, {snap}, {file} and {local} are put in; words are cut at |
		want string
	}{
		{"sandbox|list", id},
		{"sandbox|get|{id}", `"a": "b"`},
		{"sandbox|exec|{id}|--|echo out", "out\n"},
		{"sandbox|run-code|{id}|--language|python|--|print(6*7)", "42\n"},
		{"sandbox|logs|{id}", ""},
		{"fs|write|{id}|--path|{file}|--content|hello", `"bytes": 5`},
		{"fs|read|{id}|--path|{file}", "hello"},
		{"fs|upload|{id}|--local|{local}|--remote|{file}.2", `"bytes": 5`},
		{"fs|download|{id}|--remote|{file}.2|--local|{local}.2", "downloaded"},
		{"sandbox|pause|{id}", "pause " + id},
		{"sandbox|resume|{id}", "resume " + id},
		{"sandbox|hibernate|{id}", "hibernate " + id},
		{"sandbox|wake|{id}", "wake " + id},
		{"sandbox|lifecycle|{id}", `"ttl_seconds": 600`},
		{"sandbox|set-ttl|{id}|--ttl|700", `"ttl_seconds": 700`},
		{"sandbox|set-persistent|{id}|--persistent|true", `"persistent": true`},
		{"sandbox|fork|{id}|--metadata|k=v", `"k": "v"`},
		{"sandbox|fork-tree|{id}|--count|2", `"fork_tree_id"`},
		{"sandbox|preview-url|{id}|--port|80", "80-" + id},
		{"sandbox|preview-urls|{id}", "{"},
		{"snapshot|list|--sandbox|{id}", snap},
		{"snapshot|get|{snap}", snap},
		{"sandbox|create|--from-snapshot|{snap}", `"from_snapshot": "` + snap},
		{"token|list", "pds_"},
		{"token|create|--label|ci", `"label": "ci"`},
		{"template|list", `"base"`},
		{"me", `"auth_method": "token"`},
		{"snapshot|delete|{snap}", "deleted snapshot"},
	} {
		t.Run(strings.Join(strings.SplitN(tt.args, "|", 3)[:min(2, strings.Count(tt.args, "|")+1)], "-"), func(t *testing.T) {
			args := strings.Split(strings.NewReplacer("{id}", id, "{snap}", snap, "{file}", file, "{local}", local).Replace(tt.args), "|")
			out, errs, err := c.run("", args...)
			if err != nil || !strings.Contains(out, tt.want) {
				t.Errorf("%v: %v\n%s%s\nwant %q", args, err, out, errs, tt.want)
			}
		})
	}
	t.Run("ssh", func(t *testing.T) {
		out, errs, err := c.run("echo $((6*7))-ok; exit\n", "sandbox", "ssh", id)
		if err != nil || !strings.Contains(out, "42-ok") || strings.Contains(out, `"exit"`) {
			t.Errorf("%v\n%s%s", err, out, errs)
		}
	})
	t.Run("delete", func(t *testing.T) {
		if out, errs, err := c.run("", "sandbox", "delete", id); err != nil || !strings.Contains(out, "deleted "+id) {
			t.Errorf("%v\n%s%s", err, out, errs)
		}
		if _, errs, err := c.run("", "sandbox", "exec", id, "--", "true"); err == nil || !strings.Contains(errs, "deleted") {
			t.Errorf("exec after the end: %v %s, want an error that says why", err, errs)
		}
	})
}

type cli struct {
	t   *testing.T
	dir string
	env []string
}

func (c *cli) run(stdin string, args ...string) (stdout, stderr string, err error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{filepath.Join(c.dir, "node_modules/@pandastack/sdk/dist/cli.js")}, args...)...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.dir, c.env, strings.NewReader(stdin), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// id runs a command that prints what it made.
func (c *cli) id(args ...string) string {
	c.t.Helper()
	out, errs, err := c.run("", args...)
	var made struct{ ID string }
	if err != nil || json.Unmarshal([]byte(out), &made) != nil || made.ID == "" {
		c.t.Fatalf("%v: %v\n%s%s", args, err, out, errs)
	}
	return made.ID
}
