package api

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
)

// Ids are a kind prefix and twenty lower-case letters and digits with a hundred random bits, so that
// they fit in a DNS label beside a port and cannot be guessed.
type (
	SandboxID  string // "sbx..."
	SnapshotID string // "snp..."
	TreeID     string // "tre...": the children of one fork tree
	TemplateID string // "tpl...": a template that was built
	BuildID    string // "bld...": a build, and the version of a template that it made
	Workspace  string // who owns things: a slug of letters, digits and dashes
)

// RequestID names one request in answers and logs: "req...".
type RequestID string

// idLetters has no padding and only lower-case letters and digits.
var idLetters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newID(prefix string) string {
	var b [13]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never returns an error since Go 1.24
	return prefix + idLetters.EncodeToString(b[:])[:20]
}

// NewSandboxID makes an id that nobody has.
func NewSandboxID() SandboxID { return SandboxID(newID("sbx")) }

// NewSnapshotID makes an id that nobody has.
func NewSnapshotID() SnapshotID { return SnapshotID(newID("snp")) }

// NewTreeID makes an id that nobody has.
func NewTreeID() TreeID { return TreeID(newID("tre")) }

// NewTemplateID makes an id that nobody has.
func NewTemplateID() TemplateID { return TemplateID(newID("tpl")) }

// NewBuildID makes an id that nobody has.
func NewBuildID() BuildID { return BuildID(newID("bld")) }

// Valid tells whether the text can be a template's id; it says nothing about whether there is one.
func (id TemplateID) Valid() bool { return validID(string(id), "tpl") }

// Valid tells whether the text can be a build's id; it says nothing about whether there is one.
func (id BuildID) Valid() bool { return validID(string(id), "bld") }

// ParseBuildID reads an id from a path. What cannot be an id answers not_found.
func ParseBuildID(s string) (BuildID, error) {
	if id := BuildID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "build %s not found: ids look like bld and 20 letters and digits", quote(s))
}

// NewRequestID makes an id that nobody has.
func NewRequestID() RequestID { return RequestID(newID("req")) }

// Valid tells whether the text can be a sandbox's id; it says nothing about whether there is one.
func (id SandboxID) Valid() bool { return validID(string(id), "sbx") }

// Valid tells whether the text can be a snapshot's id; it says nothing about whether there is one.
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

// ParseSandboxID reads an id from a path or a host name. What cannot be an id answers not_found, as an
// id that nobody has does.
func ParseSandboxID(s string) (SandboxID, error) {
	if id := SandboxID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "sandbox %s not found: ids look like sbx and 20 letters and digits", quote(s))
}

// ParseSnapshotID reads an id from a path or query. What cannot be an id answers not_found.
func ParseSnapshotID(s string) (SnapshotID, error) {
	if id := SnapshotID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "snapshot %s not found: ids look like snp and 20 letters and digits", quote(s))
}

// quote bounds text of a client before it goes into a message.
func quote(s string) string {
	if len(s) > 60 {
		s = s[:60] + "..."
	}
	return fmt.Sprintf("%q", s)
}
