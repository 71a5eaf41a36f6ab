package nodebackup

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/config"
)

// belowStore is where backups of nodes are in an object store that holds other things, too.
const belowStore = "node-backups"

// Location returns the URL of the repository: place, a URL or the path of a directory, or by default the settings'.
// A directory in the data directory is refused.
func Location(cfg *config.Node, place string) (string, error) {
	if place == "" {
		place = cfg.Backup.URL
	}
	if place == "" {
		if cfg.ObjectStore.URL == "" {
			return "", errors.New("no place for backups is given: name a directory or a URL such as s3://bucket, or " +
				"set backup.url or object_store.url")
		}
		u, err := url.Parse(cfg.ObjectStore.URL)
		if err != nil {
			return "", fmt.Errorf("object_store.url: %w", err)
		}
		if u.Scheme == "file" {
			u.Path = strings.TrimSuffix(u.Path, "/") + "/" + belowStore
		} else {
			q := u.Query()
			q.Set("prefix", q.Get("prefix")+belowStore+"/")
			u.RawQuery = q.Encode()
		}
		place = u.String()
	}
	if !strings.Contains(place, "://") {
		abs, err := filepath.Abs(place)
		if err != nil {
			return "", err
		}
		place = (&url.URL{Scheme: "file", Path: abs}).String()
	}
	u, err := url.Parse(place)
	if err != nil {
		return "", fmt.Errorf("place of backups: %w", err)
	}
	if u.Scheme == "file" {
		data, err := filepath.Abs(cfg.DataDir)
		if err != nil {
			return "", err
		}
		if rel, err := filepath.Rel(data, u.Path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return "", fmt.Errorf("%s is in the data directory, and would be lost with it: use a directory on another "+
				"disk", u.Path)
		}
	}
	return place, nil
}

// ReadPassphrase reads the passphrase in a file that only its owner can read. The end of the line is not part of it.
func ReadPassphrase(path string) (string, error) {
	if path == "" {
		return "", errors.New("no passphrase is given: name a file that holds it with --passphrase-file or the " +
			"setting backup.passphrase_file")
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("passphrase of backups: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || info.Size() > 4096 {
		return "", fmt.Errorf("passphrase of backups: %s is not a small file that only its owner can read (mode 0600)",
			path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("passphrase of backups: %w", err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}
