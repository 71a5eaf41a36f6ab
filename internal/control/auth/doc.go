// Package auth makes, checks, rotates and revokes API keys, and authenticates callers.
//
// A key is "pds_" and 32 hexadecimal digits. The store has only its SHA-256 and its prefix with the first eight digits,
// which identifies it. A key belongs to a workspace and has a role there, and the scopes of this role or fewer; an
// operator's key may operate the node in addition. It can expire, and be limited to networks.
//
// The package says what a caller may do (Principal) and decides only who may manage which keys: no caller can give or
// take more than the own key has. The APIs check scopes.
//
// All methods may be called concurrently.
package auth
