// Package manifest reads PostgreSQL's backup manifests, and verifies tar archives of data directories against them.
//
// It owns the rules for what a data directory may contain. Manifests and archives come from servers of users and are
// not trusted: the number and the names of files are bounded and checked.
package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
)

const (
	maxFiles = 1 << 20
	maxName  = 1024
)

// ErrMismatch means that an archive differs from its manifest, or that the manifest is damaged.
var ErrMismatch = errors.New("the base backup does not match its manifest")

// Manifest lists the files of a data directory.
type Manifest struct {
	Files  map[string]File
	Ranges []Range // of the log that is needed
}

// File is a file of a data directory.
type File struct {
	Bytes  int64
	SHA256 [sha256.Size]byte
}

// Range is a part of the log.
type Range struct {
	Timeline   wal.Timeline
	Start, End wal.LSN
}

// document is the JSON of a manifest.
type document struct {
	Version int             `json:"PostgreSQL-Backup-Manifest-Version"`
	System  json.RawMessage `json:"System-Identifier,omitempty"`
	Files   []fileJSON      `json:"Files"`
	Ranges  []rangeJSON     `json:"WAL-Ranges"`
	Sum     string          `json:"Manifest-Checksum,omitempty"`
}

type fileJSON struct {
	Path      string `json:"Path,omitempty"`
	Encoded   string `json:"Encoded-Path,omitempty"` // hexadecimal, of a name that is not UTF-8
	Size      int64  `json:"Size"`
	Modified  string `json:"Last-Modified"`
	Algorithm string `json:"Checksum-Algorithm"`
	Sum       string `json:"Checksum"`
}

type rangeJSON struct {
	Timeline uint32 `json:"Timeline"`
	Start    string `json:"Start-LSN"`
	End      string `json:"End-LSN"`
}

func mismatch(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMismatch, fmt.Sprintf(format, args...))
}

// Parse parses a manifest with SHA-256 checksums and verifies its own.
func Parse(text []byte) (*Manifest, error) {
	// The last line has the checksum of all lines before it.
	end := bytes.LastIndexByte(bytes.TrimRight(text, "\n"), '\n') + 1
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, mismatch("it is not JSON: %v", err)
	}
	if sum := sha256.Sum256(text[:end]); d.Sum != hex.EncodeToString(sum[:]) {
		return nil, mismatch("the manifest has another checksum than it says")
	}
	if d.Version != 1 && d.Version != 2 {
		return nil, mismatch("the manifest has the unknown version %d", d.Version)
	}
	if len(d.Files) > maxFiles {
		return nil, mismatch("it lists %d files, more than %d", len(d.Files), maxFiles)
	}
	m := &Manifest{Files: make(map[string]File, len(d.Files))}
	for _, f := range d.Files {
		if err := m.file(f); err != nil {
			return nil, err
		}
	}
	for _, r := range d.Ranges {
		start, err1 := wal.ParseLSN(r.Start)
		end, err2 := wal.ParseLSN(r.End)
		if err := errors.Join(err1, err2); err != nil || r.Timeline == 0 {
			return nil, mismatch("it needs an invalid part of the log: %v", err)
		}
		m.Ranges = append(m.Ranges, Range{wal.Timeline(r.Timeline), start, end})
	}
	return m, nil
}

func (m *Manifest) file(f fileJSON) error {
	name := f.Path
	if f.Encoded != "" {
		raw, err := hex.DecodeString(f.Encoded)
		if err != nil {
			return mismatch("the file name %.80q is not hexadecimal", f.Encoded)
		}
		name = string(raw)
	}
	if err := checkName(name); err != nil {
		return err
	}
	if _, ok := m.Files[name]; ok {
		return mismatch("it lists the file %q twice", name)
	}
	sum, err := hex.DecodeString(f.Sum)
	if err != nil || len(sum) != sha256.Size || f.Algorithm != "SHA256" || f.Size < 0 {
		return mismatch("the file %q has no SHA256 checksum", name)
	}
	m.Files[name] = File{f.Size, [sha256.Size]byte(sum)}
	return nil
}

// checkName rejects names that would leave the data directory.
func checkName(name string) error {
	if len(name) > maxName || !validPath(name) || name == "." {
		return mismatch("invalid file name %.80q", name)
	}
	return nil
}

// validPath is fs.ValidPath for names that need not be UTF-8.
func validPath(name string) bool {
	return fs.ValidPath(strings.ToValidUTF8(name, "?")) && !strings.ContainsRune(name, 0)
}

// Format returns the text of a manifest of version 1. Its times are the given one: no reader uses them.
func (m *Manifest) Format(names []string, at time.Time) ([]byte, error) {
	d := document{Version: 1, Files: []fileJSON{}, Ranges: []rangeJSON{}}
	for _, name := range names {
		f := m.Files[name]
		one := fileJSON{
			Path: name, Size: f.Bytes, Modified: at.UTC().Format("2006-01-02 15:04:05 GMT"), Algorithm: "SHA256",
			Sum: hex.EncodeToString(f.SHA256[:]),
		}
		if strings.ToValidUTF8(name, "") != name {
			one.Path, one.Encoded = "", hex.EncodeToString([]byte(name))
		}
		d.Files = append(d.Files, one)
	}
	for _, r := range m.Ranges {
		d.Ranges = append(d.Ranges, rangeJSON{uint32(r.Timeline), r.Start.String(), r.End.String()})
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	text = append(text[:len(text)-1], ",\n"...)
	sum := sha256.Sum256(text)
	return fmt.Appendf(text, "\"Manifest-Checksum\": %q}\n", hex.EncodeToString(sum[:])), nil
}
