package api

import (
	"strings"
	"time"
)

// How a port became known.
const (
	PortUser     = "user"     // declared by the user
	PortDetected = "detected" // a program listens on it
)

// Port is a TCP port of a sandbox: GET /v1/sandboxes/{id}/ports.
type Port struct {
	Port      int    `json:"port"`
	Label     string `json:"label"`
	Listening bool   `json:"listening"`
	Source    string `json:"source" enum:"user,detected"`
	ProxyURL  string `json:"proxy_url" doc:"Path on this server that reaches the port."`
	Program   string `json:"program,omitempty" doc:"Program that listens, as the guest reports it."`
}

// PortRequest declares a port: POST /v1/sandboxes/{id}/ports.
type PortRequest struct {
	Port  int    `json:"port"`
	Label string `json:"label,omitempty"`
}

// Validate checks the request on its own.
func (r *PortRequest) Validate() error {
	if err := ValidatePort("port", r.Port); err != nil {
		return err
	}
	if len(r.Label) > 64 {
		return invalid("label", "has %d bytes: use at most 64", len(r.Label))
	}
	if strings.ContainsRune(r.Label, 0) {
		return invalid("label", "holds a zero byte")
	}
	return nil
}

// ValidatePort checks that a number is a TCP port.
func ValidatePort(field string, port int) error {
	if port < 1 || port > 65535 {
		return invalid(field, "%d is no port: use 1 to 65535", port)
	}
	return nil
}

// PreviewRequest asks for a signed preview address: POST /v1/sandboxes/{id}/preview-token.
type PreviewRequest struct {
	Port       int      `json:"port"`
	TTLSeconds int64    `json:"ttl_seconds,omitempty" doc:"3600 if absent, at most 604800."`
	Paths      []string `json:"paths,omitempty" doc:"Only paths with one of these prefixes; all if absent."`
}

// maxPreviewSeconds bounds the lifetime of a signed preview address: a week.
const maxPreviewSeconds = 604800

// Validate checks the request and sets the default lifetime.
func (r *PreviewRequest) Validate() error {
	if r.TTLSeconds == 0 {
		r.TTLSeconds = 3600
	}
	if err := ValidatePort("port", r.Port); err != nil {
		return err
	}
	if r.TTLSeconds < 1 || r.TTLSeconds > maxPreviewSeconds {
		return invalid("ttl_seconds", "%d is out of range: use 1 to %d", r.TTLSeconds, maxPreviewSeconds)
	}
	if len(r.Paths) > 32 {
		return invalid("paths", "%d prefixes are too many: use at most 32", len(r.Paths))
	}
	for _, p := range r.Paths {
		if p == "" || p[0] != '/' || len(p) > 256 {
			return invalid("paths", "%s is not a prefix: begin it with / and use at most 256 bytes", quote(p))
		}
		for _, c := range p {
			if c == '|' || c == ',' || c < ' ' {
				return invalid("paths", "%s holds one of | , or a control character", quote(p))
			}
		}
	}
	return nil
}

// Preview is a signed preview address.
type Preview struct {
	ID        string    `json:"id" doc:"Names the preview, for example to revoke it, and does not open it."`
	URL       string    `json:"url" doc:"Paths can be appended. It redirects to the host name of the port."`
	HostURL   string    `json:"host_url" doc:"The same on the host name of the port, where browsers need no redirect."`
	Token     string    `json:"token"`
	SandboxID SandboxID `json:"sandbox_id"`
	Port      int       `json:"port"`
	Paths     []string  `json:"paths,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
}

// PreviewInfo is a signed preview address without what is secret in it.
type PreviewInfo struct {
	ID        string     `json:"id"`
	Port      int        `json:"port"`
	Paths     []string   `json:"paths,omitempty" doc:"Only paths with one of these prefixes; all if absent."`
	CreatedBy string     `json:"created_by" doc:"Prefix of the key that made it."`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt time.Time  `json:"expires_at"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
}

// PreviewList is the response of GET /v1/sandboxes/{id}/previews, newest first.
type PreviewList struct {
	Previews []PreviewInfo `json:"previews"`
}
