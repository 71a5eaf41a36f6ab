package cli_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// TestCompletionOfNames asks as the scripts of the shells do.
func TestCompletionOfNames(t *testing.T) {
	w := integrationtest.New(t)
	env := []string{"PANDASTACK_API=" + w.URL, "PANDASTACK_API_KEY=" + w.Key}
	box, err := w.Client.Sandboxes.Create(t.Context(), api.CreateRequest{Metadata: map[string]string{"name": "web"}})
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := w.Client.Sandboxes.Snapshot(t.Context(), box.ID, api.SnapshotRequest{Name: "before"})
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"sandbox get w":                      "web\t" + string(box.ID) + "\n:4\n",
		"sandbox exec sbx":                   string(box.ID) + "\trunning, base\n:4\n",
		"sandbox delete web we":              "web\t" + string(box.ID) + "\n:4\n",
		"sandbox get none":                   ":4\n",
		"ssh w":                              "web\t" + string(box.ID) + "\n:4\n",
		"sandbox create --template b":        "base\n:4\n",
		"sandbox create --from-snapshot snp": string(snapshot.ID) + "\tbefore\n:4\n",
		"snapshot get snp":                   string(snapshot.ID) + "\tbefore\n:4\n",
		"template bake ba":                   "base\n:4\n",
	} {
		code, out, errs := run(t, env, append([]string{"__complete"}, strings.Fields(line)...)...)
		if code != 0 || out != want {
			t.Errorf("%s completes to %q (exit code %d, %s), want %q", line, out, code, errs, want)
		}
	}
	none := []string{"PANDASTACK_API=http://127.0.0.1:1"}
	if _, out, _ := run(t, none, "__complete", "sandbox", "get", "w"); out != ":4\n" {
		t.Errorf("without a node it completes to %q", out)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, out, _ := run(t, nil, "completion", shell); code != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("completion %s: exit code %d, %d bytes", shell, code, len(out))
		}
	}
}
