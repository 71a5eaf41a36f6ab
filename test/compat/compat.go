// Package compat records what published clients do against this server, and writes the page of the results.
//
// A test that drives a client records how each of its operations went; the page for users is made of these records. The
// package owns the form of a record, the folder of records, and the page. A record has nothing of the run (no times, no
// machine), so that equal results give equal bytes and a change in a file is a change of behaviour. Records are saved
// one after the other, since each save writes the page.
package compat

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// Record is what one client did.
type Record struct {
	Client     string      `json:"client"` // its name in the registry
	Registry   string      `json:"registry"`
	Version    string      `json:"version"`
	Part       string      `json:"part,omitempty"` // of the client that the test drives; "": what has no part
	Test       string      `json:"test"`           // the test that drives it
	Operations []Operation `json:"operations"`
}

// Operation is one step of a scenario.
type Operation struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
}

// The folder of records and the page, below the repository's root.
const (
	folder = "test/compat/results"
	page   = "docs/compatibility.md"
)

// Save writes a record below the repository's root, and the page.
//
// A record without operations is an error: the client did not run.
func Save(root string, r Record) error {
	if r.Client == "" || r.Version == "" || len(r.Operations) == 0 {
		return errors.New("a record needs a client, its version and operations")
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	name := strings.NewReplacer("@", "", "/", "-").
		Replace(r.Client) +
		"-" + r.Version + "-" + strings.ToLower(
		r.Registry,
	) + strings.ReplaceAll(r.of(), ", ", "-") + ".json"
	if err := writeChanged(filepath.Join(root, folder, name), append(data, '\n')); err != nil {
		return err
	}
	text, err := Page(root)
	if err != nil {
		return err
	}
	return writeChanged(filepath.Join(root, page), text)
}

// writeChanged writes a file unless it has the data already.
func writeChanged(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// Records returns all records below the repository's root, by client and version.
func Records(root string) ([]Record, error) {
	entries, err := os.ReadDir(filepath.Join(root, folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []Record
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(root, folder, e.Name()))
		if err != nil {
			return nil, err
		}
		var r Record
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		all = append(all, r)
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Or(
			cmp.Compare(a.Client, b.Client),
			cmp.Compare(a.Version, b.Version),
			cmp.Compare(a.Registry, b.Registry),
			cmp.Compare(a.Part, b.Part),
		) < 0
	})
	return all, nil
}

// Page returns the page of all records.
func Page(root string) ([]byte, error) {
	all, err := Records(root)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString(head)
	for _, r := range all {
		well := 0
		for _, o := range r.Operations {
			if o.OK {
				well++
			}
		}
		fmt.Fprintf(
			&b,
			"| `%s` (%s) | %s | %d | %s | `%s` |\n",
			r.Client,
			r.Registry+r.of(),
			r.Version,
			len(r.Operations),
			result(well, len(r.Operations)),
			r.Test,
		)
	}
	b.WriteString(middle)
	for _, r := range all {
		fmt.Fprintf(&b, "\n## %s %s (%s)\n\n", r.Client, r.Version, r.Registry+r.of())
		for _, o := range r.Operations {
			fmt.Fprintf(&b, "- %s %s\n", map[bool]string{true: "passes:", false: "**fails:**"}[o.OK], o.Name)
		}
	}
	return b.Bytes(), nil
}

// of returns the part of a record behind a comma, if it has one.
func (r Record) of() string {
	if r.Part == "" {
		return ""
	}
	return ", " + r.Part
}

func result(well, all int) string {
	if well == all {
		return "all pass"
	}
	return fmt.Sprintf("**%d of %d fail**", all-well, all)
}

// quoted is text in which ' stands for a backtick.
func quoted(text string) string { return strings.ReplaceAll(text, "'", "`") }

var head = quoted(`# Published clients

Which published clients are driven, unmodified, by 'make test' or 'make test-slow', and how each of their operations
went. Every operation is a test of its own, against a real node with real guests. The run writes this page. Clients that
need the template 'code-interpreter' run in 'make test' on template 'base', where '@e2b/code-interpreter' first gives
its sandbox the packages of the template; with the template itself they run in 'make test-slow'.

| client | version | operations | result | test |
|---|---|---|---|---|
`)

var middle = quoted(`
E2B clients need a key and a domain, and reach everything by names below it over TLS and HTTP/2:
'E2B_API_KEY=e2b_... E2B_DOMAIN=panda.example.org', where the digits of the key are those of a 'pds_' key. With a
certificate of the node authority they also need 'NODE_EXTRA_CA_CERTS' or, for Python, 'SSL_CERT_FILE', as
'pandastack up' prints it.

Fields of requests that this server does not know are accepted and logged once, so that newer clients work; those that
may decide access (in the network, in credentials, or with a name such as 'allow' or 'token') are refused by name, like
every unknown name in a query. Ids of builds are UUIDs. These are refused by name as well: secrets, 'mcp', 'iam' and
metrics of teams, which it does not have; 'egressProxy' and rules with headers, since connections leave this host as the
guest made them and are not opened to be changed. Pauses without memory ('keepMemory: false'), 'maskRequestHost',
'httpsPorts', and lists by 'order' and 'startedAfter' work, and so do [volumes](volumes.md#e2b). Metrics are measured
when a client asks, and every five seconds for two minutes after that; they are kept for half an hour. A sandbox that a
request resumed gets its first timeout again, at least 300 seconds; requests to the agent and to the code interpreter
resume it only with their token, and nothing but its clients one that was paused without memory. The agent reports
version 0.6.4.
`)
