// Package egress decides what a guest may reach by name, and answers its questions for names.
//
// It owns the resolver that stands between a guest and the host's resolvers. A Resolver asks upstream with
// messages of its own, one plain question each, so that a guest's message never leaves as it came. A
// DNSServer serves one guest on two sockets that the caller opened where the guest reaches them.
//
// It must not know slots, namespaces or firewalls: who uses it opens the sockets and loads the rules.
//
// All methods may be called at once from many goroutines. Every goroutine belongs to a server whose Close waits for it.
package egress
