package node

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v4"

	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/apimetrics"
)

// exported reports whether a registry has a metric, whether it has a value yet or not.
func exported(r *prometheus.Registry, name string) bool {
	probe := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "probe"})
	if err := r.Register(probe); err != nil {
		return true // a metric of that name has another help text
	}
	r.Unregister(probe)
	return false
}

// The dashboard and the alert rules of the documentation use metrics that exist.
func TestMonitoringUsesMetrics(t *testing.T) {
	host := hosttest.New()
	t.Cleanup(host.Close)
	reg, _, err := newNode(t).metrics(host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apimetrics.New(reg); err != nil {
		t.Fatal(err)
	}
	if err := reg.Register(access.NewDoor(access.DoorConfig{MaxWait: time.Second})); err != nil {
		t.Fatal(err)
	}
	if exported(reg, "pandastack_none") {
		t.Fatal("the test finds a metric that does not exist")
	}
	name := regexp.MustCompile(`pandastack_[a-z_]+`)
	for file, expressions := range map[string][]string{
		"grafana.json": dashboard(t, "../../docs/monitoring/grafana.json"),
		"alerts.yaml":  alerts(t, "../../docs/monitoring/alerts.yaml"),
	} {
		if len(expressions) < 9 {
			t.Errorf("%s has %d expressions", file, len(expressions))
		}
		for _, e := range expressions {
			found := name.FindAllString(e, -1)
			if len(found) == 0 {
				t.Errorf("%s: %q has no metric", file, e)
			}
			for _, n := range found {
				if n = strings.TrimSuffix(n, "_bucket"); !exported(reg, n) {
					t.Errorf("%s: there is no metric %s", file, n)
				}
			}
		}
	}
}

// dashboard returns the expressions of a dashboard.
func dashboard(t *testing.T, path string) (all []string) {
	t.Helper()
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}

// alerts returns the expressions of alert rules, each of which operations.md has to explain.
func alerts(t *testing.T, path string) (all []string) {
	t.Helper()
	var f struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Expr)
			if !strings.Contains(string(page), "`"+r.Alert+"`") {
				t.Errorf("operations.md does not explain the alert %s", r.Alert)
			}
		}
	}
	return all
}
