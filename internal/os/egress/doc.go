// Package egress enforces what a guest may reach by name, and resolves names for it.
//
// It owns the resolver between a guest and the host's resolvers. A Resolver queries upstream with messages of its
// own, one plain question each, so that a guest's message never leaves as it came. A DNSServer serves one guest on
// two sockets that the caller opened where the guest reaches them.
//
// Limits hold for each guest; what all guests share is paid for with accounts of package budget.
//
// The package does not know slots, namespaces or firewalls: its caller opens the sockets and loads the rules.
//
// All methods are safe for concurrent use. Every goroutine belongs to a server whose Close waits for it.
package egress
