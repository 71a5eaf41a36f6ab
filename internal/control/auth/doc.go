// Package auth knows API keys: it makes, checks and revokes them, and says who a caller is.
//
// A key is "pds_" and 32 hexadecimal digits. Only its SHA-256 is stored, beside the first eight digits,
// which name it. The package knows nothing of what a caller may do beyond the scope of the key.
//
// All methods may be called at once.
package auth
