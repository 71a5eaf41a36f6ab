package api

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
)

// Ids are a prefix for the kind and twenty lower-case letters and digits with a hundred random bits.
//
// They fit in a DNS label beside a port and cannot be guessed.
type (
	SandboxID  string // "sbx..."
	SnapshotID string // "snp..."
	TreeID     string // "tre...": the children of one fork tree
	TemplateID string // "tpl...": a template that was built
	BuildID    string // "bld...": a build, and the version of a template that it made
	Workspace  string // owner of resources: a slug of letters, digits and dashes
)

// RequestID names one request in responses and logs: "req...".
type RequestID string

// idLetters has no padding and only lower-case letters and digits.
var idLetters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newID(prefix string) string {
	var b [13]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never returns an error since Go 1.24
	return prefix + idLetters.EncodeToString(b[:])[:20]
}

// NewSandboxID returns a new random id.
func NewSandboxID() SandboxID { return SandboxID(newID("sbx")) }

// NewSnapshotID returns a new random id.
func NewSnapshotID() SnapshotID { return SnapshotID(newID("snp")) }

// NewTreeID returns a new random id.
func NewTreeID() TreeID { return TreeID(newID("tre")) }

// NewTemplateID returns a new random id.
func NewTemplateID() TemplateID { return TemplateID(newID("tpl")) }

// NewBuildID returns a new random id.
func NewBuildID() BuildID { return BuildID(newID("bld")) }

// Valid reports whether id has the form of a template's id, not whether the template exists.
func (id TemplateID) Valid() bool { return validID(string(id), "tpl") }

// Valid reports whether id has the form of a build's id, not whether the build exists.
func (id BuildID) Valid() bool { return validID(string(id), "bld") }

// ParseBuildID reads an id from a path. The error of a malformed id is not_found.
func ParseBuildID(s string) (BuildID, error) {
	if id := BuildID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "build %s not found: ids look like bld and 20 letters and digits", quote(s))
}

// NewRequestID returns a new random id.
func NewRequestID() RequestID { return RequestID(newID("req")) }

// Valid reports whether id has the form of a sandbox's id, not whether the sandbox exists.
func (id SandboxID) Valid() bool { return validID(string(id), "sbx") }

// Valid reports whether id has the form of a snapshot's id, not whether the snapshot exists.
func (id SnapshotID) Valid() bool { return validID(string(id), "snp") }

func validID(s, prefix string) bool {
	if len(s) != len(prefix)+20 || !strings.HasPrefix(s, prefix) {
		return false
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// ParseSandboxID reads an id from a path or a host name.
//
// The error of a malformed id is not_found, like that of an id that does not exist.
func ParseSandboxID(s string) (SandboxID, error) {
	if id := SandboxID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "sandbox %s not found: ids look like sbx and 20 letters and digits", quote(s))
}

// ParseSnapshotID reads an id from a path or query. The error of a malformed id is not_found.
func ParseSnapshotID(s string) (SnapshotID, error) {
	if id := SnapshotID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "snapshot %s not found: ids look like snp and 20 letters and digits", quote(s))
}

// quote quotes and shortens text of a client for a message.
func quote(s string) string {
	if len(s) > 60 {
		s = s[:60] + "..."
	}
	return fmt.Sprintf("%q", s)
}
