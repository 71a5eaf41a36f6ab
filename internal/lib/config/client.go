package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Client holds the address and key with which a client reaches a node.
type Client struct {
	URL    string
	Key    string
	Origin string // where the address came from, for messages
}

// ClientSources are the places that the address and key come from.
//
// They are, in this order: flags, environment, the user's file (~/.config/pandastack/config.json), and the file that a
// node on this machine leaves in its data directory for root.
type ClientSources struct {
	URL, Key string // flags
	Env      []string
	DataDir  string
}

// nodeFile is the file that a node leaves for the command line on the same machine, readable by its owner only.
const nodeFile = "client.json"

// NodeFile returns the path of the file that a node leaves in its data directory for the command line.
func NodeFile(dataDir string) string { return filepath.Join(dataDir, nodeFile) }

// NodeAccess is the content of the file NodeFile.
type NodeAccess struct {
	APIURL string `json:"api_url"`
	APIKey string `json:"api_key,omitempty"`
	TLSURL string `json:"tls_url,omitempty"` // the API over TLS
	CAFile string `json:"ca_file,omitempty"` // certificate of the node's own authority, which clients have to trust
}

// DefaultURL is the address of a node with default settings.
const DefaultURL = "http://127.0.0.1:7700"

// LoadClient finds the address and key. A missing file is no error; a malformed file is one.
func LoadClient(src ClientSources) (Client, error) {
	env := environment(src.Env)
	c := Client{URL: src.URL, Key: src.Key, Origin: "--api"}
	fill := func(url, key, origin string) {
		if c.URL == "" && url != "" {
			c.URL, c.Origin = url, origin
		}
		if c.Key == "" {
			c.Key = key
		}
	}
	if err := sameServer(env["PANDASTACK_API"], env["PANDASTACK_API_URL"]); c.URL == "" && err != nil {
		return Client{}, err
	}
	fill(env["PANDASTACK_API"], env["PANDASTACK_API_KEY"], "PANDASTACK_API")
	fill(env["PANDASTACK_API_URL"], env["PANDASTACK_TOKEN"], "PANDASTACK_API_URL")
	for _, path := range []string{UserFile(src.Env), NodeFile(src.DataDir)} {
		if c.URL != "" && c.Key != "" {
			break
		}
		url, key, err := readClientFile(path)
		if err != nil {
			return Client{}, err
		}
		if c.URL != "" && url != "" && strings.TrimRight(url, "/") != strings.TrimRight(c.URL, "/") {
			continue // a key of another server must not be sent to this one
		}
		fill(url, key, path)
	}
	fill(DefaultURL, "", "default")
	if strings.HasSuffix(strings.TrimRight(c.URL, "/"), "/v1") {
		return Client{}, fmt.Errorf("%s: %s ends in /v1: give the address of the server without it", c.Origin, c.URL)
	}
	return c, nil
}

// sameServer returns an error if both variables are set and name different servers: the published SDKs read only the
// first, so a key could be sent to a server that the user does not mean.
func sameServer(api, apiURL string) error {
	if api == "" || apiURL == "" || strings.TrimRight(api, "/") == strings.TrimRight(apiURL, "/") {
		return nil
	}
	return fmt.Errorf(
		"PANDASTACK_API is %s and PANDASTACK_API_URL is %s: unset PANDASTACK_API_URL (SDKs do not read it)",
		api,
		apiURL,
	)
}

// UserFile returns the path of the user's own file, or "" if the environment names no home directory.
func UserFile(env []string) string {
	e := environment(env)
	dir := e["XDG_CONFIG_HOME"]
	if dir == "" {
		if e["HOME"] == "" {
			return ""
		}
		dir = filepath.Join(e["HOME"], ".config")
	}
	return filepath.Join(dir, "pandastack", "config.json")
}

// readClientFile reads a file in any of the spellings that published clients write.
func readClientFile(path string) (url, key string, err error) {
	if path == "" {
		return "", "", nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		return "", "", fmt.Errorf("%s is not a JSON object: %w", path, err)
	}
	first := func(names ...string) string {
		for _, n := range names {
			if s, ok := m[n].(string); ok && s != "" {
				return s
			}
		}
		return ""
	}
	return first("api_url", "apiUrl"), first("api_key", "apiKey", "token"), nil
}

// DataDir returns the data directory that the flag or the environment names, or the default. It may be a path relative
// to the working directory.
func DataDir(flag string, env []string) string {
	if flag != "" {
		return flag
	}
	n := &Node{}
	f := n.Fields()[0]
	if text := environment(env)[f.Env()]; text != "" {
		return text
	}
	return f.Default
}
