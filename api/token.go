package api

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Token is an API key without its secret: GET /v1/me/tokens.
type Token struct {
	Prefix     string     `json:"prefix" doc:"The first letters of the key, which identify it."`
	Label      string     `json:"label"`
	Name       string     `json:"name" doc:"The same as label."`
	Admin      bool       `json:"admin" doc:"The role is owner or admin."`
	Role       Role       `json:"role" enum:"owner,admin,developer,viewer"`
	Operator   bool       `json:"operator,omitempty" doc:"May operate the node."`
	Scopes     []Scope    `json:"scopes" doc:"What the key may do."`
	CIDRs      []string   `json:"cidrs,omitempty" doc:"Networks that it may be used from; empty is all."`
	Workspace  Workspace  `json:"workspace,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty" doc:"With a precision of a minute."`
	ReplacedBy string     `json:"replaced_by,omitempty" doc:"Prefix of the key that it was rotated to."`
}

// TokenList is the response of GET /v1/me/tokens.
type TokenList struct {
	Items []Token `json:"items"`
}

// TokenRequest creates a key: POST /v1/me/tokens. Old clients send name instead of label, and admin instead of role.
type TokenRequest struct {
	Label         string     `json:"label,omitempty"`
	Name          string     `json:"name,omitempty" doc:"The same as label."`
	ExpiresInDays int        `json:"expires_in_days,omitempty" doc:"0: never."`
	ExpiresAt     *time.Time `json:"expires_at,omitempty" doc:"In place of expires_in_days."`
	Admin         bool       `json:"admin,omitempty" doc:"The same as the role admin."`
	Role          Role       `json:"role,omitempty" enum:"owner,admin,developer,viewer" doc:"developer if absent."`
	Operator      bool       `json:"operator,omitempty" doc:"May operate the node; only an operator can give this."`
	Scopes        []Scope    `json:"scopes,omitempty" doc:"Some scopes of the role; all if absent."`
	CIDRs         []string   `json:"cidrs,omitempty" doc:"Networks that it may be used from; all if absent."`
	Workspace     Workspace  `json:"workspace,omitempty" doc:"The caller's if absent; others for operators only."`
}

// The most networks and days that a key may have.
const (
	MaxKeyCIDRs = 64
	maxKeyDays  = 3650
)

// Validate checks the request, copies Name to Label, and completes Role and ExpiresAt.
func (r *TokenRequest) Validate() error {
	if r.Label == "" {
		r.Label = r.Name
	}
	if len(r.Label) > 128 || strings.ContainsRune(r.Label, 0) {
		return invalid("label", "has %d bytes: use at most 128 bytes of text", len(r.Label))
	}
	if r.ExpiresInDays < 0 || r.ExpiresInDays > maxKeyDays {
		return invalid("expires_in_days", "%d is out of range: use 0 for never, or up to %d", r.ExpiresInDays,
			maxKeyDays)
	}
	if r.ExpiresInDays > 0 && r.ExpiresAt != nil {
		return invalid("expires_at", "expires_in_days is given too: use one of them")
	}
	if r.ExpiresInDays > 0 {
		at := time.Now().UTC().AddDate(0, 0, r.ExpiresInDays)
		r.ExpiresAt = &at
	}
	if at := r.ExpiresAt; at != nil && (!at.After(time.Now()) || time.Until(*at) > (maxKeyDays+1)*24*time.Hour) {
		return invalid("expires_at", "%s is not within the next %d days", at.Format(time.RFC3339), maxKeyDays)
	}
	if err := r.completeRole(); err != nil {
		return err
	}
	for _, s := range r.Scopes {
		if !s.Valid() {
			return invalid("scopes", "%s is not a scope: use %s", quote(string(s)), words(Scopes()))
		}
		if !slices.Contains(r.Role.Scopes(r.Operator), s) {
			return invalid("scopes", "%s is not of the role %s: use %s, or another role", s, r.Role,
				words(r.Role.Scopes(r.Operator)))
		}
	}
	if len(r.CIDRs) > MaxKeyCIDRs {
		return invalid("cidrs", "%d networks are too many: use at most %d", len(r.CIDRs), MaxKeyCIDRs)
	}
	for i, text := range r.CIDRs {
		p, err := ParseCIDR(text)
		if err != nil {
			return invalid("cidrs", "%s is not an address or a network such as 192.0.2.0/24", quote(text))
		}
		r.CIDRs[i] = p.String()
	}
	return nil
}

func (r *TokenRequest) completeRole() error {
	switch {
	case r.Role == "" && r.Admin:
		r.Role = RoleAdmin
	case r.Role == "":
		r.Role = RoleDeveloper
	case !r.Role.Valid():
		return invalid("role", "%s is not a role: use %s", quote(string(r.Role)), words(Roles()))
	case r.Admin && r.Role != RoleAdmin && r.Role != RoleOwner:
		return invalid("role", "%s contradicts admin: leave admin out", r.Role)
	}
	return nil
}

func words[T ~string](list []T) string {
	text := make([]string, 0, len(list))
	for _, s := range list {
		text = append(text, string(s))
	}
	return strings.Join(text, ", ")
}

// ParseCIDR parses a network, or an address as the network that contains it alone.
func ParseCIDR(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%s: write the network as IPv4", text)
	}
	return p.Masked(), nil
}

// TokenCreated is a new key. Token is shown only once.
type TokenCreated struct {
	Token         string     `json:"token"`
	Prefix        string     `json:"prefix"`
	Label         string     `json:"label"`
	Name          string     `json:"name"`
	Admin         bool       `json:"admin"`
	Role          Role       `json:"role" enum:"owner,admin,developer,viewer"`
	Operator      bool       `json:"operator,omitempty"`
	Scopes        []Scope    `json:"scopes"`
	CIDRs         []string   `json:"cidrs,omitempty"`
	Workspace     Workspace  `json:"workspace,omitempty"`
	CreatedAt     time.Time  `json:"created_at"`
	ExpiresAt     *time.Time `json:"expires_at,omitempty"`
	Replaces      string     `json:"replaces,omitempty" doc:"Prefix of the key that was rotated."`
	ReplacedUntil *time.Time `json:"replaced_until,omitempty" doc:"When the rotated key ends."`
}

// RotateRequest rotates a key: POST /v1/me/tokens/{prefix}/rotate.
type RotateRequest struct {
	OverlapSeconds *int64 `json:"overlap_seconds,omitempty" doc:"How long the old key still works; a day if absent."`
}

// The overlap of a rotation.
const (
	DefaultKeyOverlap = 24 * time.Hour
	MaxKeyOverlap     = 30 * 24 * time.Hour
)

// Validate checks the request.
func (r *RotateRequest) Validate() error {
	if s := r.OverlapSeconds; s != nil && (*s < 0 || *s > int64(MaxKeyOverlap.Seconds())) {
		return invalid("overlap_seconds", "%d is out of range: use 0 to %d", *s, int64(MaxKeyOverlap.Seconds()))
	}
	return nil
}

// Overlap returns how long the old key still works.
func (r *RotateRequest) Overlap() time.Duration {
	if r.OverlapSeconds == nil {
		return DefaultKeyOverlap
	}
	return time.Duration(*r.OverlapSeconds) * time.Second
}

// Me is the caller: GET /v1/me.
type Me struct {
	UserID       string    `json:"user_id"`
	Email        string    `json:"email"`
	CurrentOrg   Workspace `json:"current_org"`
	CurrentOrgID Workspace `json:"current_org_id"`
	Workspace    Workspace `json:"workspace"`
	Orgs         []Org     `json:"orgs"`
	AuthMethod   string    `json:"auth_method" enum:"token"`
	TokenPrefix  string    `json:"token_prefix,omitempty"`
	Role         string    `json:"role,omitempty"`
	Operator     bool      `json:"operator,omitempty" doc:"The key may operate the node."`
	Scopes       []Scope   `json:"scopes" doc:"What the key may do."`
}

// OrgChoice names the workspace to act for: POST /v1/me/current-org.
type OrgChoice struct {
	OrgID Workspace `json:"org_id"`
}

// Validate checks the request on its own.
func (r *OrgChoice) Validate() error {
	if r.OrgID == "" {
		return invalid("org_id", "is missing: name a workspace, as GET /v1/orgs lists them")
	}
	return nil
}

// Org is a workspace that the caller may use.
type Org struct {
	ID   Workspace `json:"id"`
	Slug Workspace `json:"slug"`
	Name string    `json:"name"`
	Role string    `json:"role"`
}
