// Package netslot is a pool of prepared network places, one for each machine of a host.
//
// # What a slot is
//
// A slot is a network namespace with two links: tap0, on which the guest sits, and veth0, whose other end
// is on the host. All slots look the same from inside, so that a snapshot fits into any of them: the guest
// is 192.168.241.2/29 with hardware address 02:fc:00:00:00:05, its gateway and resolver is 192.168.241.1,
// and tap0 has the same hardware address everywhere, so that a restored guest's ARP cache is right.
// Slot number i has its own /30 of the pool's range: the host's end is the first address, the second is
// the slot's GuestIP. The host reaches the guest by dialling GuestIP; the namespace translates it to the
// guest's address one to one, and back for what the guest sends.
//
// # What a guest may reach
//
// A guest reaches public IPv4 addresses, unless its egress is switched off, and the resolver on its
// gateway. It never reaches an address of the host, another slot, or one of the reserved ranges (loopback,
// link-local with the metadata services, private, shared, test, multicast), except for those that the
// operator opened in Config.Allow. IPv6 and TCP port 25 are closed. Frames with another source than the
// baked identity are dropped. These rules hold twice: in the namespace, and again on the host, where
// traffic from the slots goes out by the uplinks alone. Answers to connections that the host itself began
// pass always.
//
// Names are answered by a forwarder that this process runs on the gateway address inside each
// namespace. It is always there, whatever resolvers the host has: resolvers on loopback or on private
// addresses could not be reached by a guest, a baked guest has one resolver address for ever, and policies
// by name need to see the questions. With egress off it is closed as well, so that nothing leaks by DNS.
//
// Config.In and Out bound how much goes to and comes from a guest: a token bucket on tap0, and one on veth0. They
// are there before a slot is taken, so they cost a machine's start nothing, and hold for every monitor. What
// the host sends the guest and hears from it counts as well.
//
// # What it owns
//
// The namespaces /run/netns/<prefix>-<index>, the host links <prefix>-<index>, the nft table <prefix>, and
// the forwarding switches of the uplinks, where they were off. The global ip_forward switch is never
// touched: links forward one by one. Close gives the switches back, unless ip_forward was turned on by
// somebody in between, whose wish it then is. Everything carries the configured prefix, which is how Open
// finds what an earlier process left. The package knows nothing of machines or sandboxes: an owner is a
// word for the logs.
//
// # Life
//
// New, Open, then Adopt for each slot that lives on from an earlier process, then Sweep, which removes the
// others. Run prepares slots ahead. Take gives a prepared slot, or prepares one when none is ready. Give
// takes it back: its connections are forgotten, its rules are set anew. Close removes everything but the
// slots still taken, which the next process may adopt. The kernel state of a slot (rules, translation)
// works without this process; only the resolver does not answer meanwhile.
//
// All methods of Pool and Slot may be called at once from many goroutines. Work inside a namespace is
// done on a thread locked for it, which is given back to the program only once it is home again.
package netslot
