// Package netslot is a pool of prepared network slots, one for each machine of a host.
//
// # Slots
//
// A slot is a network namespace with two links: tap0, to which the guest is attached, and veth0, whose other end is
// on the host. All slots look the same from inside, so that a snapshot fits into any of them: the guest is
// 192.168.241.2/29 with hardware address 02:fc:00:00:00:05, its gateway and resolver is 192.168.241.1, and tap0 has
// the same hardware address everywhere, so that a restored guest's ARP cache is right. Slot number i has its own /30
// of the pool's range: the host's end is the first address, the second is the slot's GuestIP. The host reaches the
// guest by dialling GuestIP; the namespace translates it to the guest's address one to one, and back for the guest's
// packets.
//
// # Reachable addresses
//
// A guest reaches public IPv4 addresses, unless its egress is switched off, and the resolver on its gateway. It never
// reaches an address of the host, another slot, or one of the reserved ranges (loopback, link-local with the metadata
// services, private, shared, test, multicast), except for those that the operator opened in Config.Allow. IPv6 and
// TCP port 25 are closed. Frames with another source than the baked identity are dropped. These rules hold twice: in
// the namespace, and again on the host, where traffic from the slots leaves by the uplinks alone. Replies to
// connections that the host itself opened always pass.
//
// With Config.ServicePort a guest reaches one thing of the host, unless it may reach nothing: Pool.Service, at that
// port of its gateway. The connections are this process's; no packet of them leaves the slot.
//
// A forwarder in this process resolves names on the gateway address inside each namespace. It always exists,
// whichever resolvers the host has: a guest cannot reach resolvers on loopback or on private addresses, a baked guest
// has one resolver address for ever, and policies by name need to see the questions. It removes closed addresses from
// replies. With egress off it is closed as well, so that DNS leaks nothing.
//
// Config.In and Out limit the traffic to and from a guest: a token bucket on tap0, and one on veth0. They are set up
// before a slot is acquired, so they cost a machine's start nothing, and hold for every monitor. Traffic between host
// and guest counts as well.
//
// # Ownership
//
// The package owns the namespaces /run/netns/<prefix>-<index>, the host links <prefix>-<index>, the nft table
// <prefix>, and the forwarding settings of uplinks that did not forward. It never touches the global ip_forward
// setting: links forward one by one. Close resets those settings, unless another program turned ip_forward on in the
// meantime. All names carry the configured prefix, by which Open finds the slots of an earlier process. The package
// does not know machines or sandboxes: an owner is a word for the logs.
//
// # Life cycle
//
// Call New, Open, Adopt for each slot that is still in use since an earlier process, and Sweep, which removes the
// others. Run prepares slots in advance. Acquire returns a prepared slot, or prepares one if none is ready. Release
// takes it back, forgets its connections and resets its rules. Close removes all slots except those in use, which the
// next process may adopt. The kernel state of a slot (rules, translation) works without this process; only the
// resolver does not.
//
// All methods of Pool and Slot are safe for concurrent use. Work inside a namespace is done on a thread locked for
// it, which the runtime may reuse only once it is back in its own namespace.
package netslot
