package buildplan

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// setup makes the machine reach what builds download: certificates, names, and configuration of package managers.
func (r *run) setup(ctx context.Context) error {
	r.out.begin("setup")
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return err
	}
	m := r.req.Mirrors
	if m == nil {
		return nil
	}
	for name, content := range m.Files {
		if err := r.writeFile(name, content, 0o644); err != nil {
			return err
		}
	}
	if len(m.Hosts) > 0 {
		f, err := os.OpenFile(filepath.Join(r.Root, "/etc/hosts"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(strings.Join(m.Hosts, "\n") + "\n")
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	if m.Debian != "" {
		if err := r.debianMirror(m.Debian); err != nil {
			return err
		}
	}
	if m.Certificates == "" {
		return nil
	}
	return r.certificates(m.Certificates)
}

// bundle is where Debian keeps all trusted certificates in one file.
const bundle = "/etc/ssl/certs/ca-certificates.crt"

// certificates adds certificates to those that the machine trusts: to the bundle, which all programs read that use the
// system's, and where update-ca-certificates finds them when a package brings others.
func (r *run) certificates(pem string) error {
	if err := r.writeFile("/usr/local/share/ca-certificates/pandastack.crt", pem, 0o644); err != nil {
		return err
	}
	file := filepath.Join(r.Root, bundle)
	known, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if strings.Contains(string(known), pem) {
		return nil
	}
	return r.writeFile(bundle, string(known)+"\n"+pem, 0o644)
}

// debianArchive matches the URL of an archive of Debian or of its security updates, on any host.
var debianArchive = regexp.MustCompile(`(?m)https?://[^\s/]+/debian(-security)?(/|\s|$)`)

// debianMirror replaces the archive of the distribution in the sources of its package manager.
func (r *run) debianMirror(url string) error {
	files, err := filepath.Glob(filepath.Join(r.Root, "/etc/apt/sources.list.d/*"))
	if err != nil {
		return err
	}
	files = append(files, filepath.Join(r.Root, "/etc/apt/sources.list"))
	swap := []byte(strings.ReplaceAll(strings.TrimSuffix(url, "/"), "$", "$$") + "${1}${2}")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, debianArchive.ReplaceAll(text, swap), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) writeFile(name, content string, mode os.FileMode) error {
	at := filepath.Join(r.Root, filepath.Clean("/"+name))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(at, []byte(content), mode); err != nil {
		return err
	}
	return os.Chmod(at, mode)
}
