package bench

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// TestPackages checks that deployments with dependencies are measured after the one that installs them, and that the
// series is skipped by its name where that one fails.
func TestPackages(t *testing.T) {
	const id = "funaaaaaaaaaaaaaaaaaaaa"
	for _, reachable := range []bool{true, false} {
		var bundles []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			file, _, err := r.FormFile("bundle")
			if err != nil || r.URL.Path != "/v1/functions/"+id+"/deploy" {
				t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
				return
			}
			data, err := io.ReadAll(file)
			if err != nil {
				t.Error(err)
			}
			bundles = append(bundles, string(data))
			if !reachable {
				e := api.Errorf(api.Invalid, "pip failed")
				w.WriteHeader(e.Code.Info().Status)
				_ = json.NewEncoder(w).Encode(e) // the client would report it
				return
			}
			_ = json.NewEncoder(w).Encode(api.Function{ID: id, IsReady: true}) // the client would report it
		}))
		defer server.Close()
		cl, err := client.New(server.URL, "pds_test")
		if err != nil {
			t.Fatal(err)
		}
		r := &run{cl: cl, report: &Report{Skipped: map[string]string{}}}
		if err := r.packages(t.Context(), api.Function{ID: id, Entrypoint: "handler.py"}); err != nil {
			t.Fatal(err)
		}
		why := r.report.Skipped["function_deploy_packages"]
		if !reachable {
			if !strings.Contains(why, "pip failed") || len(r.report.Series) > 0 || len(bundles) != 1 {
				t.Errorf("skipped %q with %d series and %d deployments, want a reason, none and 1", why,
					len(r.report.Series), len(bundles))
			}
			continue
		}
		if why != "" || len(r.report.Series) != 1 || len(r.report.Series[0].Values) != len(bundles)-1 ||
			len(bundles) < 2 || !strings.Contains(r.report.Series[0].Note, "installed them") {
			t.Errorf("skipped %q, series %+v after %d deployments, want a value for each but the first", why,
				r.report.Series, len(bundles))
		}
		for i, b := range bundles {
			if i > 0 && b == bundles[i-1] || !strings.Contains(b, "jinja2==3.1.6") {
				t.Errorf("deployment %d has the code of the one before, or no dependencies", i)
			}
		}
	}
}
