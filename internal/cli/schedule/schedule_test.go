package schedule_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/schedule"
)

// TestCreateForApp creates a schedule of an app that is named by its name.
func TestCreateForApp(t *testing.T) {
	shop := api.AppID("app" + strings.Repeat("a", 20))
	var got api.CreateScheduleRequest
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "GET /v1/apps/shop":
			_ = json.NewEncoder(w).Encode(api.App{ID: shop, Name: "shop"})
		case "POST /v1/schedules":
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(api.Schedule{Name: got.Name, Target: got.Target})
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(api.Errorf(api.NotFound, "no %s", r.URL.Path))
		}
	}))
	defer server.Close()
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := schedule.Command(&cmdutil.Factory{
			Stdout: &out, Stderr: io.Discard, Stdin: strings.NewReader(""),
			Dial: func() (*client.Client, error) { return client.New(server.URL, "pds_test") },
		})
		c.SetArgs(args)
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := run("create", "nightly", "--cron", "@daily", "--app", "shop", "--", "bin/clean", "-v")
	if err != nil {
		t.Fatal(err)
	}
	if got.Target.AppID != shop || got.Target.Command != "bin/clean -v" || got.Cron != "@daily" {
		t.Errorf("sent %+v", got)
	}
	if !strings.Contains(out, "in a machine of "+string(shop)+": bin/clean -v") {
		t.Errorf("printed %s", out)
	}
	_, err = run("create", "nightly", "--cron", "@daily", "--app", "none", "--", "x")
	if api.CodeOf(err) != api.NotFound {
		t.Errorf("an app that does not exist: %v", err)
	}
}
