package httpapi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
)

// TestHostUsage checks what a sandbox used of its host in every state, and that strangers do not get it.
func TestHostUsage(t *testing.T) {
	w := newFixture(t)
	id, path := w.create()
	for _, tt := range []struct {
		verb string
		want api.HostUsage
	}{
		{"", api.HostUsage{SandboxID: id, UptimeSeconds: 20, ActiveCPUSeconds: 1.5}},
		{"pause", api.HostUsage{SandboxID: id, UptimeSeconds: 20, ActiveCPUSeconds: 1.5}},
		{"hibernate", api.HostUsage{SandboxID: id}},
	} {
		if tt.verb != "" {
			w.do("POST", path+"/"+tt.verb, "")
		}
		var got api.HostUsage
		a := w.do("GET", path+"/util", "")
		a.json(t, &got)
		memory := got.ResidentGiBSeconds
		got.ResidentGiBSeconds = 0
		// A quarter of a GiB for the twenty seconds before the first request, and for the time since.
		if got != tt.want || tt.verb == "hibernate" && memory != 0 ||
			tt.verb != "hibernate" && (memory < 5 || memory > 5+patience.Seconds()) {
			t.Errorf("after %q: got %d %s", tt.verb, a.status, a.body)
		}
	}
	if a := w.do("GET", path+"/util", "", as(keyStranger)); a.failed(t).Code != api.NotFound {
		t.Errorf("a stranger got %s, want not_found", a.body)
	}
}

// TestSeries checks that each request measures a running sandbox, and that a series has the measurements of the
// requested time.
func TestSeries(t *testing.T) {
	w := newFixture(t)
	id, path := w.create()
	at := "/v1/metrics/sandbox/" + string(id)
	now := time.Now()
	var got api.Series
	w.do("GET", at, "").json(t, &got)
	if got.SandboxID != id || got.Step != "15s" || got.StepSeconds != 15 || got.Empty || len(got.Points) != 1 ||
		got.To.Sub(got.From) != time.Hour {
		t.Fatalf("series without parameters = %+v", got)
	}
	p := got.Points[0]
	if p.CPUPct < 49 || p.CPUPct > 51 || p.MemBytes != 60 || p.DiskUsedBytes != 7 || p.NetRxBytes != 8 ||
		p.NetTxBytes != 9 ||
		p.TS.Unix()%15 != 0 {
		t.Errorf("got point %+v", p)
	}
	for query, some := range map[string]bool{
		fmt.Sprintf("from=%d&step=1h", now.Unix()-60):                                    true,
		"from=" + now.Add(-time.Hour).UTC().Format(time.RFC3339) + "&step=5m":            true,
		fmt.Sprintf("to=%d&step=1m", now.Unix()-600):                                     false,
		fmt.Sprintf("from=%d&to=%d", now.Unix()+3600, now.Unix()+7200):                   false,
		"to=" + now.Add(24*time.Hour).UTC().Format(time.RFC3339) + "&from=0":             true,
		"to=" + now.Add(-2*time.Hour).UTC().Format(time.RFC3339) + "&step=1h" + "&from=": false,
	} {
		a := w.do("GET", at+"?"+query, "")
		a.json(t, &got)
		if a.status != 200 || got.Empty == some || (len(got.Points) > 0) != some {
			t.Errorf("%s: got %d %s", query, a.status, a.body)
		}
	}
	known := len(got.Points)
	for _, verb := range []string{"pause", "hibernate"} { // nothing new, and everything that was measured before
		w.do("POST", path+"/"+verb, "")
		w.do("GET", at+"?step=1h&from=0", "").json(t, &got)
		if len(got.Points) < max(1, known) {
			t.Errorf("after %s: got %+v", verb, got)
		}
	}
}

func TestSeriesRefuses(t *testing.T) {
	w := newFixture(t)
	id, path := w.create()
	at := "/v1/metrics/sandbox/" + string(id)
	for _, tt := range []struct {
		path, key string
		code      api.Code
		field     string
	}{
		{at, keyStranger, api.NotFound, ""},
		{"/v1/metrics/sandbox/" + string(api.NewSandboxID()), keyMember, api.NotFound, ""},
		{"/v1/metrics/sandbox/..%2fetc", keyMember, api.NotFound, ""},
		{at + "?step=2s", keyMember, api.Invalid, "step"},
		{at + "?step=" + strings.Repeat("9", 9000), keyMember, api.Invalid, "step"},
		{at + "?from=yesterday", keyMember, api.Invalid, "from"},
		{at + "?from=-1", keyMember, api.Invalid, "from"},
		{at + "?to=99999999999999999999", keyMember, api.Invalid, "to"},
		{at + "?to=253402300800", keyMember, api.Invalid, "to"},
		{at + "?from=20&to=10", keyMember, api.Invalid, "to"},
		{at + "?range=1h", keyMember, api.Invalid, "range"},
		{path + "/util?since=1", keyMember, api.Invalid, "since"},
	} {
		e := w.do("GET", tt.path, "", as(tt.key)).failed(t)
		if e.Code != tt.code || tt.field != "" && e.Details["field"] != tt.field {
			t.Errorf("%.80s: got %s %s, want %s of %q", tt.path, e.Code, e.Message, tt.code, tt.field)
		}
	}
	w.do("DELETE", path, "")
	for _, p := range []string{at, path + "/util"} {
		if e := w.do("GET", p, "").failed(t); e.Code != api.NotFound {
			t.Errorf("%s of a sandbox that ended: got %s", p, e.Code)
		}
	}
}
