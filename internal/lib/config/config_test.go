package config_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/config"
)

var update = flag.Bool("update", false, "rewrite the generated pages")

func write(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDefaultsAreValid(t *testing.T) {
	l, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if l.DataDir != "/var/lib/pandastack" || l.Sandbox.TTL != time.Hour || l.Network.Prefix != "panda" {
		t.Errorf("defaults %+v", l.Node)
	}
	for _, f := range l.Fields() {
		if f.Doc == "" {
			t.Errorf("%s has no description", f.Path)
		}
		if l.Origin[f.Path] != "default" {
			t.Errorf("%s comes from %q", f.Path, l.Origin[f.Path])
		}
	}
}

func TestPrecedence(t *testing.T) {
	file := write(t, "node.yaml", "log:\n  level: warn\n  format: json\nsandbox:\n  ttl: 5m\nnetwork: "+
		"{prewarmed_slots: 2}\n")
	l, err := config.Load(config.Sources{
		File:  file,
		Env:   []string{"PANDASTACK_LOG_LEVEL=debug", "PANDASTACK_SANDBOX_TTL=6m", "OTHER=1"},
		Flags: map[string]string{"sandbox.ttl": "7m"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if l.Log.Format != "json" || l.Log.Level != "debug" || l.Sandbox.TTL != 7*time.Minute ||
		l.Network.PrewarmedSlots != 2 {
		t.Errorf("loaded %+v", l.Node)
	}
	for path, want := range map[string]string{
		"log.format": file + " line 3", "log.level": "PANDASTACK_LOG_LEVEL",
		"sandbox.ttl": "--sandbox-ttl", "listen": "default",
	} {
		if got := l.Origin[path]; got != want {
			t.Errorf("%s comes from %q, want %q", path, got, want)
		}
	}
	var out bytes.Buffer
	if err := l.Explain(&out); err != nil ||
		!strings.Contains(out.String(), "sandbox.ttl = 7m0s\n    from --sandbox-ttl\n") {
		t.Errorf("explained (%v)\n%s", err, out.String())
	}
}

// TestOldNames checks that every renamed setting is accepted under its old name in each source, with a warning that
// names the new one, and that both names together are refused.
func TestOldNames(t *testing.T) {
	values := map[string]string{"text": "", "number": "3", "yes or no": "true", "duration": "48h"}
	renamed := 0
	for _, f := range (&config.Node{}).Fields() {
		if f.Was == "" {
			continue
		}
		renamed++
		value := values[f.Kind]
		switch f.Path {
		case "network.cidr":
			value = "10.1.0.0/16"
		case "object_store.url":
			value = "file:///objects"
		case "object_store.key":
			value = "/key"
		case "build.insecure_registries":
			value = "localhost:5000"
		case "object_store.cache_mib", "vmm.hotplug_memory_mib":
			value = "1280"
		}
		section, name, _ := strings.Cut(f.Was, ".")
		envName := "PANDASTACK_" + strings.ToUpper(strings.ReplaceAll(f.Was, ".", "_"))
		for source, src := range map[string]config.Sources{
			"file": {File: write(t, "node.yaml", section+":\n  "+name+": "+value+"\n")},
			"env":  {Env: []string{envName + "=" + value}},
			"flag": {Flags: map[string]string{f.Was: value}},
		} {
			l, err := config.Load(src)
			if err != nil {
				t.Errorf("%s in %s: %v", f.Was, source, err)
				continue
			}
			for _, loaded := range l.Fields() {
				if loaded.Path == f.Path && loaded.Text() != value && loaded.Text() != value+"0m0s" {
					t.Errorf("%s in %s: got %s = %q, want %q", f.Was, source, f.Path, loaded.Text(), value)
				}
			}
			if len(l.Warnings) != 1 || !strings.Contains(l.Warnings[0], "is now called") {
				t.Errorf("%s in %s: got warnings %q, want one that names %s", f.Was, source, l.Warnings, f.Path)
			}
		}
		_, err := config.Load(config.Sources{Flags: map[string]string{f.Was: value, f.Path: value}})
		if want := "--" + f.Flag() + " is set under its old name"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s under both names: got error %v, want %q", f.Path, err, want)
		}
	}
	if renamed == 0 {
		t.Error("got no renamed setting, want some")
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	file := write(
		t,
		"node.yaml",
		"colour: red\nlog:\n  level: loud\nnetwork:\n  slots: many\n  cidr: 10.0.0.0/29\n  allow: 10.1.0.0/16, "+
			"there\n  resolvers: 9.9.9.9,here\n  prefix: Way-too-long\nlimits:\n  disk_mib_per_s: -1\n  "+
			"network_out_mbit: 2000000\nlisten: here\nvmm:\n  seccomp_mode: loose\n  seccomp_allow: read, Wr-ite\n"+
			"databases:\n  backup_days: 0\n  base_backups: 0\n  base_interval: 59m\n  spool_mib: 63\n"+
			"  rehearsal_hour: 24\n  replica_lag: 0s\n",
	)
	_, err := config.Load(config.Sources{File: file, Env: []string{"PANDASTACK_LIFECYCLE_SHUTDOWN_TIMEOUT=soon"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"limits.disk_mib_per_s: -1 is too small", "limits.network_out_mbit: 2000000 is more than 1000000",
		"colour: unknown setting (" + file + " line 1)",
		`log.level: "loud" is not one of debug, info, warn, error`,
		`vmm.seccomp_mode: "loose" is not one of enforce, record`,
		`vmm.seccomp_allow: "Wr-ite" is not the name of a system call`,
		`network.slots (` + file + ` line 5): "many" is not a whole number`,
		"databases.backup_days: 0 is out of range; use 1 to 3650",
		"databases.base_backups: 0 is out of range; use 1 to 1000",
		"databases.replica_lag: 0s is too short; use 1s or more",
		"databases.base_interval: 59m0s is too short; use 1h0m0s or more",
		"databases.spool_mib: 63 is out of range; use 64 to 1048576",
		"databases.rehearsal_hour: 24 is out of range; use 0 to 23",
		"network.cidr: 10.0.0.0/29 has room for 2 sandboxes",
		`network.allow: "there" is not an IPv4 network`,
		`network.resolvers: "here" is not an IP address`,
		`network.prefix: "Way-too-long" is not`,
		`listen: "here" is not an address and port`,
		`lifecycle.shutdown_timeout (PANDASTACK_LIFECYCLE_SHUTDOWN_TIMEOUT): "soon" is not a duration`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"list", "- a\n", "write settings as name: value"},
		{"nested-list", "log: [a]\n", "a list is not allowed here"},
		{"broken", "log: {\n", "node.yaml"},
		{"twice", "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", "listen"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := config.Load(config.Sources{File: write(t, "node.yaml", tt.text)})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	if _, err := config.Load(config.Sources{File: write(t, "empty.yaml", "")}); err != nil {
		t.Errorf("an empty file is refused: %v", err)
	}
	if _, err := config.Load(config.Sources{File: "/nowhere/x.yaml"}); err == nil {
		t.Error("a missing file is no error")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("log:\n  level: warn\n")
	f.Add("a: &x [*x]\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = config.Load(config.Sources{File: write(t, "f.yaml", text)}) // must only not crash
	})
}

func TestClient(t *testing.T) {
	home, data := t.TempDir(), t.TempDir()
	put := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func(src config.ClientSources) config.Client {
		t.Helper()
		src.DataDir = data
		src.Env = append(src.Env, "HOME="+home)
		c, err := config.LoadClient(src)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := load(config.ClientSources{}); c.URL != config.DefaultURL || c.Key != "" {
		t.Errorf("with nothing set: %+v", c)
	}
	put(config.NodeFile(data), `{"api_url":"http://127.0.0.1:9","api_key":"node"}`)
	if c := load(config.ClientSources{}); c.URL != "http://127.0.0.1:9" || c.Key != "node" {
		t.Errorf("with a node on this machine: %+v", c)
	}
	if c := load(config.ClientSources{URL: "http://elsewhere"}); c.Key != "" {
		t.Errorf("the node's key goes to another server: %+v", c)
	}
	put(filepath.Join(home, ".config/pandastack/config.json"), `{"apiUrl":"http://user","token":"user","expires_at":1}`)
	if c := load(config.ClientSources{}); c.URL != "http://user" || c.Key != "user" {
		t.Errorf("with the user's file: %+v", c)
	}
	env := []string{"PANDASTACK_API=http://env", "PANDASTACK_API_KEY=env"}
	if c := load(config.ClientSources{Env: env}); c.URL != "http://env" || c.Key != "env" {
		t.Errorf("with the environment: %+v", c)
	}
	env = []string{"PANDASTACK_API_URL=http://env", "PANDASTACK_TOKEN=env"}
	if c := load(config.ClientSources{Env: env}); c.URL != "http://env" || c.Key != "env" ||
		c.Origin != "PANDASTACK_API_URL" {
		t.Errorf("with the other names in the environment: got %+v, want http://env with its key", c)
	}
	env = []string{"PANDASTACK_API=http://one/", "PANDASTACK_API_URL=http://one"}
	if c := load(config.ClientSources{Env: env}); c.URL != "http://one/" {
		t.Errorf("with the same server under both names: got %q, want http://one/", c.URL)
	}
	env = []string{"PANDASTACK_API=http://one", "PANDASTACK_API_URL=http://two"}
	if c, err := config.LoadClient(config.ClientSources{Env: env}); err == nil ||
		!strings.Contains(err.Error(), "unset PANDASTACK_API_URL") {
		t.Errorf("with two servers in the environment: got %+v, %v, want an error that names the remedy", c, err)
	}
	if c := load(config.ClientSources{Env: env, URL: "http://flag", Key: "flag"}); c.URL != "http://flag" ||
		c.Key != "flag" {
		t.Errorf("with flags: %+v", c)
	}
	put(filepath.Join(home, ".config/pandastack/config.json"), `nonsense`)
	if _, err := config.LoadClient(config.ClientSources{Env: []string{"HOME=" + home}, DataDir: data}); err == nil {
		t.Error("a broken file is no error")
	}
}

// TestGenerated holds the pages made from the settings against the code.
func TestGenerated(t *testing.T) {
	var example, page bytes.Buffer
	if err := config.Example(&example); err != nil {
		t.Fatal(err)
	}
	if err := config.Page(&page); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{
		"pandastack.example.yaml": example.Bytes(), "configuration.md": page.Bytes(),
	} {
		path := filepath.Join("../../../docs", name)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not current (%v); run make generate", path, err)
		}
	}
	l, err := config.Load(config.Sources{File: "../../../docs/pandastack.example.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := config.Load(config.Sources{})
	if err != nil || l.Node != plain.Node {
		t.Errorf("the example file does not give the defaults (%v)", err)
	}
}

func TestPreviewDomain(t *testing.T) {
	for domain, ok := range map[string]bool{
		"": true, "localhost": true, "guests.example.net": true, "guests.example.net:8443": true,
		"127.0.0.1.nip.io": true,
		"192.0.2.1":        false, "[2001:db8::1]:80": false, "*.example.net": false, "https://example.net": false,
		"example.net.": false, "Example.net": false, "example.net:x": false, "-a.example": false, "a..b": false,
	} {
		_, err := config.Load(config.Sources{Env: []string{"PANDASTACK_PREVIEW_DOMAIN=" + domain}})
		if (err == nil) != ok || !ok && !strings.Contains(err.Error(), "preview.domain: ") {
			t.Errorf("%q: got %v, want ok %v", domain, err, ok)
		}
	}
}

func TestBackupsAndNames(t *testing.T) {
	const ca = "tls: {listen: ':1'}\nacme: {directory: 'https://ca', "
	for _, c := range [][2]string{
		{"backup:\n  every: 10s\n", "backup.every: 10s is less than a minute"},
		{"backup:\n  every: 1h\n  url: /b\n", "backup.passphrase_file: backup.every needs it"},
		{"backup:\n  every: 1h\n  passphrase_file: /p\n", "backup.url: backup.every needs it"},
		{"backup:\n  url: b\n", "backup.url: \"b\" is neither an absolute path"},
		{"backup:\n  keep: -1\n", "backup.keep"},
		{"backup:\n  every: 1h\n  passphrase_file: /p\n  url: s3://b\n", ""},
		{"acme:\n  names: panda.example.org\n", "acme.names: is set, and acme.directory is not"},
		{ca + "names: '*.a.b'}", "\"*.a.b\" is not a full host name"},
		{ca + "names: 10.0.0.1}", "\"10.0.0.1\" is not a full host name"},
		{ca + "names: 'A.b, c.d'}", ""},
	} {
		text, problem := c[0], c[1]
		_, err := config.Load(config.Sources{File: write(t, "node.yaml", text)})
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v, want %q", text, err, problem)
		}
	}
}
