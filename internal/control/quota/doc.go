// Package quota bounds what each workspace may have, and keeps which workspaces are suspended.
//
// It owns the table of kinds: what is bounded, in which unit, and how its use is counted. A service that is about to
// write a row that uses something calls Admit in the same transaction, so that concurrent requests cannot exceed a
// quota together: Admit locks the workspace until the transaction ends. A workspace has the configured default of a
// kind, or a quota of its own that an operator has set. A quota below what is in use removes nothing; it refuses
// more.
//
// To add a kind, add a constant, a line in the table and a setting of the same name below "quota" in package config.
//
// The package does not know callers or roles: package workspace decides who may change quotas. All methods may be
// called concurrently.
package quota
