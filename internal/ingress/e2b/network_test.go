package e2b_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd"
)

// reaches returns the egress policy of a sandbox's machine.
func (w *fixture) reaches(id string) hostapi.Egress {
	w.t.Helper()
	m, err := w.host.Get(w.t.Context(), hostapi.MachineID(id))
	if err != nil {
		w.t.Fatal(err)
	}
	return m.Egress
}

func TestNetworkOfSandboxes(t *testing.T) {
	w := newFixture(t)
	few := hostapi.Egress{Allow: []string{"*.example.com", "1.1.1.1"}, DenyOthers: true}
	for _, c := range []struct {
		body string
		want hostapi.Egress
	}{
		{`{"templateID":"base"}`, hostapi.Egress{}},
		{`{"templateID":"base","allow_internet_access":true,"network":{"allowPublicTraffic":true}}`, hostapi.Egress{}},
		{`{"templateID":"base","allow_internet_access":false}`, hostapi.Egress{DenyOthers: true}},
		{`{"templateID":"base","network":{"allowOut":["1.1.1.1","10.0.0.0/8"]}}`, hostapi.Egress{}},
		{`{"templateID":"base","network":{"allowOut":["*.example.com","1.1.1.1"],"denyOut":["0.0.0.0/0"]}}`, few},
		{`{"templateID":"base","allow_internet_access":false,"network":{"allowOut":["*.example.com","1.1.1.1"]}}`, few},
		{`{"templateID":"base","network":{"denyOut":["198.51.100.0/24","::/0"],"rules":{},"egressProxy":null}}`,
			hostapi.Egress{Deny: []string{"198.51.100.0/24"}}},
	} {
		made := w.create("/v2/sandboxes", c.body)
		if got := w.reaches(made.SandboxID); !got.Equal(c.want) {
			t.Errorf("%s: the machine has %+v, want %+v", c.body, got, c.want)
		}
	}
	made := w.create("/v2/sandboxes", `{"templateID":"base","network":{"denyOut":["198.51.100.7"]}}`)
	path := "/sandboxes/" + made.SandboxID
	w.must(204, "PUT", path+"/network", `{"allowOut":["*.example.com","1.1.1.1"],"denyOut":["0.0.0.0/0"]}`)
	if got := w.reaches(made.SandboxID); !got.Equal(few) {
		t.Errorf("after a change the machine has %+v, want the new policy", got)
	}
	if text := w.must(200, "GET", path, ""); !strings.Contains(
		text,
		`"allowInternetAccess":true,"network":{"allowOut":["*.example.com","1.1.1.1"],"denyOut":["0.0.0.0/0"]}`,
	) {
		t.Errorf("detail %s lacks its network", text)
	}
	w.must(204, "PUT", path+"/network", `{"allow_internet_access":false}`)
	if got := w.reaches(made.SandboxID); !got.Equal(hostapi.Egress{DenyOthers: true}) {
		t.Errorf("without internet access the machine has %+v, want all denied", got)
	}
	w.must(204, "PUT", path+"/network", `{}`) // a full replacement
	if got := w.reaches(made.SandboxID); !got.IsZero() {
		t.Errorf("after an empty change the machine has %+v, want everything allowed", got)
	}
}

// TestPortsOfSandboxes checks that what a create says about ports survives changes of the network, and is shown.
func TestPortsOfSandboxes(t *testing.T) {
	w := newFixture(t)
	made := w.create(
		"/v2/sandboxes",
		`{"templateID":"base","network":{"maskRequestHost":"app.example:${PORT}","httpsPorts":[8443],`+
			`"rules":{"a.example":[{}]}}}`,
	)
	path := "/sandboxes/" + made.SandboxID
	w.must(204, "PUT", path+"/network", `{"denyOut":["198.51.100.7"]}`)
	if text := w.must(200, "GET", path, ""); !strings.Contains(
		text,
		`"network":{"denyOut":["198.51.100.7"],"maskRequestHost":"app.example:${PORT}","httpsPorts":[8443]}`,
	) {
		t.Errorf("detail %s lacks the settings of its ports", text)
	}
	for body, say := range map[string]string{
		`{"maskRequestHost":"a b"}`:               "network.maskRequestHost: ",
		`{"maskRequestHost":"x\r\nEvil: 1"}`:      "network.maskRequestHost: ",
		`{"httpsPorts":[0]}`:                      "network.httpsPorts: ",
		`{"httpsPorts":[49983]}`:                  "network.httpsPorts: ",
		`{"httpsPorts":[1],"maskrequesthosts":1}`: "not supported",
	} {
		create := `{"templateID":"base","network":` + body + `}`
		if status, text, _ := w.call("POST", "/v2/sandboxes", w.key, create); status != 400 ||
			!strings.Contains(text, say) {
			t.Errorf("create with %s: got %d %s, want a refusal that says %q", body, status, text, say)
		}
	}
}

func TestNetworkRefused(t *testing.T) {
	w := newFixture(t)
	made := w.create("/v2/sandboxes", `{"templateID":"base","allow_internet_access":false}`)
	for body, say := range map[string]string{
		`{"allowOut":["a.example"]}`:                                    "allowOut: ",
		`{"allowOut":["a.example/x"],"denyOut":["0.0.0.0/0"]}`:          "allowOut: ",
		`{"denyOut":["nowhere:1"]}`:                                     "denyOut: ",
		`{"denyOut":["a.example"]}`:                                     "denyOut: ",
		`{"egressProxy":{"address":"proxy.example:1080"}}`:              "egressProxy: ",
		`{"rules":{"a.example":[{"transform":{"headers":{"a":"b"}}}]}}`: "rules: ",
		`{"allowOut":["a.example"],"denyOut":["2001:db8::/32"]}`:        "denyOut: ",
		`{"allowout":["a.example"],"denyOthers":true,"internet":1}`:     "not supported",
	} {
		status, text, _ := w.call("PUT", "/sandboxes/"+made.SandboxID+"/network", w.key, body)
		if status != 400 && status != 501 || !strings.Contains(text, say) {
			t.Errorf("%s: got %d %s, want a refusal that says %q", body, status, text, say)
		}
		if !strings.HasPrefix(say, "not ") {
			status, text, _ = w.call("POST", "/v2/sandboxes", w.key, `{"templateID":"base","network":`+body+`}`)
			if status != 400 && status != 501 || !strings.Contains(text, "network."+say) {
				t.Errorf("create with %s: got %d %s, want a refusal that says %q", body, status, text, say)
			}
		}
	}
	if got := w.reaches(made.SandboxID); !got.Equal(hostapi.Egress{DenyOthers: true}) {
		t.Errorf("after refused changes the machine has %+v, want the first policy", got)
	}
	if status, text, _ := w.call("PUT", "/sandboxes/sbxaaaaaaaaaaaaaaaaaaaaa/network", w.key, `{}`); status != 404 {
		t.Errorf("network of no sandbox: got %d %s, want 404", status, text)
	}
}

// TestPrivatePorts checks that no request without a token reaches or wakes a private sandbox.
func TestPrivatePorts(t *testing.T) {
	w := newFixture(t)
	type told struct{ SandboxID, TrafficAccessToken, EnvdAccessToken string }
	var made told
	body := `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true},` +
		`"network":{"allowPublicTraffic":false}}`
	if err := json.Unmarshal([]byte(w.must(201, "POST", "/v2/sandboxes", body)), &made); err != nil ||
		made.TrafficAccessToken == "" {
		t.Fatalf("create returned %+v, %v; want a traffic token", made, err)
	}
	path := "/sandboxes/" + made.SandboxID
	if text := w.must(200, "GET", path, ""); !strings.Contains(text, `"allowPublicTraffic":false`) {
		t.Errorf("detail %s does not say that it is private", text)
	}
	visit := func(uri string, port int, name, token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", w.url+uri, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = fmt.Sprintf("%d-%s.%s", port, made.SandboxID, domain)
		if name != "" {
			req.Header.Set(name, token)
		}
		status, text, _ := w.do(req)
		return status, text
	}
	reach := func(port int, name, token string) (int, string) { return visit("/contexts", port, name, token) }
	for _, port := range []int{3000, 49999} {
		if status, text := reach(port, "", ""); status != 403 || !strings.Contains(text, e2b.TrafficHeader) {
			t.Errorf("port %d without a token: got %d %s, want 403", port, status, text)
		}
	}
	if status, text := reach(49999, e2b.TrafficHeader, made.TrafficAccessToken); status != 200 {
		t.Errorf("contexts with the token: got %d %s, want 200", status, text)
	}
	if status, _ := reach(49983, "", ""); status != 404 {
		t.Errorf("status of the agent, which checks its own token = %d, want 404", status)
	}
	for _, knock := range []struct {
		port        int
		name, token string
		wakes       bool
	}{
		{3000, "", "", false}, {3000, e2b.TrafficHeader, "wrong", false},
		{49999, "", "", false},
		{49983, "", "", false},
		{49983, "X-Access-Token", "wrong", false},
		{49983, "X-Access-Token", made.EnvdAccessToken, true},
		{3000, e2b.TrafficHeader, made.TrafficAccessToken, true},
	} {
		w.must(204, "POST", path+"/pause", "")
		status, text := reach(knock.port, knock.name, knock.token)
		state := w.must(200, "GET", path, "")
		if strings.Contains(state, `"state":"running"`) != knock.wakes || !knock.wakes && status != 403 {
			t.Errorf("%+v: got %d %s, then %s; want 403 or a running sandbox", knock, status, text, state)
		}
		w.must(map[bool]int{true: 200, false: 201}[knock.wakes], "POST", path+"/connect", "")
	}
	signed := func(operation string) string {
		return "/files?path=/none&signature=" +
			url.QueryEscape(envd.Sign("/none", operation, "", made.EnvdAccessToken, nil))
	}
	for _, knock := range []struct {
		uri   string
		port  int
		wakes bool
	}{
		{"/files?path=/none&signature=x", 49983, false},
		{signed("write"), 49983, false},
		{"/health?signature=x", 49983, false},
		{signed("read"), 49999, false},
		{signed("read"), 49983, true},
	} {
		w.must(204, "POST", path+"/pause", "")
		status, text := visit(knock.uri, knock.port, "", "")
		state := w.must(200, "GET", path, "")
		if strings.Contains(state, `"state":"running"`) != knock.wakes || knock.wakes == (status == 403) {
			t.Errorf("%+v: got %d %s, then %s; want 403 or a running sandbox", knock, status, text, state)
		}
		w.must(map[bool]int{true: 200, false: 201}[knock.wakes], "POST", path+"/connect", "")
	}
	w.must(204, "PUT", path+"/network", `{"allow_internet_access":false}`)
	if status, _ := reach(3000, "", ""); status != 403 {
		t.Errorf("status after a change of the network = %d, want 403", status)
	}
}

// TestWakeNeedsAToken checks that no request wakes a public sandbox through its agent or interpreter without their
// token, and that none wakes one whose memory was not kept.
func TestWakeNeedsAToken(t *testing.T) {
	w := newFixture(t)
	var made struct{ SandboxID, TrafficAccessToken, EnvdAccessToken string }
	w.decode(w.must(201, "POST", "/v2/sandboxes",
		`{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`), &made)
	path := "/sandboxes/" + made.SandboxID
	for _, knock := range []struct {
		port        int
		name, token string
		status      int // 0: any, of a sandbox that runs
	}{
		{49983, "", "", 403},
		{49983, "X-Access-Token", "wrong", 403},
		{49983, e2b.TrafficHeader, made.TrafficAccessToken, 403},
		{49983, "X-Access-Token", made.EnvdAccessToken, 0},
		{49999, "", "", 403},
		{49999, "X-Access-Token", "wrong", 403},
		{49999, e2b.TrafficHeader, made.TrafficAccessToken, 0},
		{49999, "X-Access-Token", made.EnvdAccessToken, 0},
		{3000, "", "", 0},
	} {
		for _, memory := range []bool{true, false} {
			w.must(204, "POST", path+"/pause", fmt.Sprintf(`{"memory":%t}`, memory))
			status, text := w.at("GET", made.SandboxID, knock.port, "/health", knock.name, knock.token)
			state, want := w.must(200, "GET", path, ""), knock.status
			if !memory {
				want = 502
			}
			if strings.Contains(state, `"state":"running"`) != (want == 0) || want != 0 && status != want {
				t.Errorf("%+v, with memory %t: got %d %s, then %s; want %d, 0 for a running sandbox",
					knock, memory, status, text, state, want)
			}
			if !strings.Contains(state, `"autoResume":true`) {
				t.Errorf("the sandbox forgot that it resumes by itself: %s", state)
			}
			w.must(map[bool]int{true: 200, false: 201}[want == 0], "POST", path+"/connect", "")
		}
	}
}
