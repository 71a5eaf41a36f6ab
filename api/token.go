package api

import "time"

// Token is an API key without its secret: GET /v1/me/tokens.
type Token struct {
	Prefix     string     `json:"prefix" doc:"The first letters of the key, which identify it."`
	Label      string     `json:"label"`
	Name       string     `json:"name" doc:"The same as label."`
	Admin      bool       `json:"admin" doc:"May manage keys and the node."`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
}

// TokenList is the response of GET /v1/me/tokens.
type TokenList struct {
	Items []Token `json:"items"`
}

// TokenRequest creates a key: POST /v1/me/tokens. Old clients send name instead of label.
type TokenRequest struct {
	Label         string `json:"label,omitempty"`
	Name          string `json:"name,omitempty" doc:"The same as label."`
	ExpiresInDays int    `json:"expires_in_days,omitempty" doc:"0: never."`
	Admin         bool   `json:"admin,omitempty" doc:"May manage keys and the node."`
}

// Validate checks the request and copies Name to Label.
func (r *TokenRequest) Validate() error {
	if r.Label == "" {
		r.Label = r.Name
	}
	if len(r.Label) > 128 {
		return invalid("label", "has %d bytes: use at most 128", len(r.Label))
	}
	if r.ExpiresInDays < 0 || r.ExpiresInDays > 3650 {
		return invalid("expires_in_days", "%d is out of range: use 0 for never, or up to 3650", r.ExpiresInDays)
	}
	return nil
}

// TokenCreated is a new key. Token is shown only once.
type TokenCreated struct {
	Token     string     `json:"token"`
	Prefix    string     `json:"prefix"`
	Label     string     `json:"label"`
	Name      string     `json:"name"`
	Admin     bool       `json:"admin"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
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
