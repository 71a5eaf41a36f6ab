// Package auth makes, checks and revokes API keys, and authenticates callers.
//
// A key is "pds_" and 32 hexadecimal digits. The store has only its SHA-256 and its prefix with the first eight digits,
// which identifies it. The package does not decide what a caller may do, except by the scope of the key.
//
// All methods may be called concurrently.
package auth
