package api

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of SSH keys.
const (
	MaxSSHKey      = 16 << 10 // bytes of a public key as text
	MaxSSHKeyLabel = 128
)

// SSHKeyID names an SSH key: "ssh...".
type SSHKeyID string

// NewSSHKeyID returns a new random id.
func NewSSHKeyID() SSHKeyID { return SSHKeyID(newID("ssh")) }

// Valid reports whether id has the form of an SSH key's id, not whether the key exists.
func (id SSHKeyID) Valid() bool { return validID(string(id), "ssh") }

// ParseSSHKeyID reads an id from a path. The error of a malformed id is not_found.
func ParseSSHKeyID(s string) (SSHKeyID, error) {
	if id := SSHKeyID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "SSH key %s not found: ids look like ssh and 20 letters and digits", quote(s))
}

// SSHKey is a public key whose owner may use the sandboxes of a workspace over SSH.
type SSHKey struct {
	ID          SSHKeyID   `json:"id"`
	Label       string     `json:"label,omitempty"`
	Fingerprint string     `json:"fingerprint" doc:"As printed by ssh-keygen -l: SHA256:..."`
	PublicKey   string     `json:"public_key" doc:"As in a file of authorized keys."`
	KeyPrefix   string     `json:"key_prefix" doc:"The API key that added it: it has its rights, and ends with it."`
	CreatedAt   time.Time  `json:"created_at"`
	LastUsedAt  *time.Time `json:"last_used_at,omitempty"`
}

// AddSSHKeyRequest adds an SSH key to the workspace of the caller.
type AddSSHKeyRequest struct {
	PublicKey string `json:"public_key" doc:"The line of a file such as id_ed25519.pub."`
	Label     string `json:"label,omitempty" doc:"Text for people; the comment of the key if absent."`
}

// Validate reports the first invalid field. Whether the text is a public key is found out where it is parsed.
func (r *AddSSHKeyRequest) Validate() error {
	switch {
	case r.PublicKey == "":
		return Errorf(Invalid, "public_key: is missing: send the line of a file such as ~/.ssh/id_ed25519.pub").
			With("field", "public_key")
	case len(r.PublicKey) > MaxSSHKey:
		return Errorf(Invalid, "public_key: has %d bytes, at most %d are possible", len(r.PublicKey), MaxSSHKey).
			With("field", "public_key")
	}
	if !utf8.ValidString(r.Label) || len(r.Label) > MaxSSHKeyLabel || strings.ContainsFunc(r.Label, unicode.IsControl) {
		return Errorf(Invalid, "label: use at most %d bytes of UTF-8 without control characters", MaxSSHKeyLabel).
			With("field", "label")
	}
	return nil
}

// SSHGateway says how to reach sandboxes over SSH.
type SSHGateway struct {
	Host     string   `json:"host" doc:"Host name or address."`
	Port     int      `json:"port"`
	HostKeys []string `json:"host_keys" doc:"Public keys of the gateway, as in a file of known hosts after the name."`
}
