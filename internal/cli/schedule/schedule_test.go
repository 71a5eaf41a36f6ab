package schedule_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/schedule"
)

// command runs a command against a server that has an app, a function and a sandbox, and returns the schedule that it
// makes.
func command(t *testing.T, args ...string) (got api.CreateScheduleRequest, printed string, err error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "GET /v1/apps/shop":
			_ = json.NewEncoder(w).Encode(api.App{ID: shop, Name: "shop"})
		case "GET /v1/functions/digest":
			_ = json.NewEncoder(w).Encode(api.Function{ID: digest, Name: "digest"})
		case "GET /v1/sandboxes":
			_ = json.NewEncoder(w).Encode([]api.Sandbox{{ID: box, Metadata: map[string]string{"name": "worker"}}})
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
	var out bytes.Buffer
	c := schedule.Command(&cmdutil.Factory{
		Stdout: &out, Stderr: io.Discard, Stdin: strings.NewReader(""),
		Dial: func() (*client.Client, error) { return client.New(server.URL, "pds_test") },
	})
	c.SetArgs(args)
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	err = c.ExecuteContext(t.Context())
	return got, out.String(), err
}

const (
	shop   = api.AppID("appaaaaaaaaaaaaaaaaaaaa")
	digest = api.FunctionID("funaaaaaaaaaaaaaaaaaaaa")
	box    = api.SandboxID("sbxaaaaaaaaaaaaaaaaaaaa")
)

// TestCreate creates schedules of targets that are named by their names.
func TestCreate(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		want    api.ScheduleTarget
		printed string
		code    api.Code
		err     string
	}{
		"app": {
			args:    []string{"--app", "shop", "--", "bin/clean", "-v"},
			want:    api.ScheduleTarget{AppID: shop, Command: "bin/clean -v"},
			printed: "in a machine of " + string(shop) + ": bin/clean -v",
		},
		"no such app": {args: []string{"--app", "none", "--", "x"}, code: api.NotFound},
		"function": {
			args:    []string{"--function", "digest", "--payload", `{"days":1}`},
			want:    api.ScheduleTarget{FunctionID: digest, Input: json.RawMessage(`{"days":1}`)},
			printed: "invoke " + string(digest),
		},
		"function without an event": {
			args: []string{"--function", "digest"}, want: api.ScheduleTarget{FunctionID: digest},
		},
		"no such function": {args: []string{"--function", "none"}, code: api.NotFound},
		"payload that is no JSON": {
			args: []string{"--function", "digest", "--payload", "{days"}, code: api.Invalid,
			err: "--payload is not JSON",
		},
		"payload of a command": {
			args: []string{"--sandbox", "worker", "--payload", "1", "--", "x"}, code: api.Invalid, err: "--function",
		},
		"sandbox": {
			args: []string{"--sandbox", "worker", "--", "x"}, want: api.ScheduleTarget{SandboxID: box, Command: "x"},
		},
		"no such sandbox": {args: []string{"--sandbox", "none", "--", "x"}, code: api.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			got, printed, err := command(t, append([]string{"create", "nightly", "--cron", "@daily"}, c.args...)...)
			if c.code != "" {
				if api.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.err) || got.Name != "" {
					t.Errorf("error %v and the request %+v, want %s with %q and none", err, got, c.code, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Cron != "@daily" || !reflect.DeepEqual(got.Target, c.want) {
				t.Errorf("request %+v, want target %+v", got, c.want)
			}
			if !strings.Contains(printed, c.printed) {
				t.Errorf("printed %q, want %q in it", printed, c.printed)
			}
		})
	}
}
