// Package jail isolates and limits monitor processes with cgroups, own user IDs, resource limits
// and jails.
//
// It owns one cgroup per name, below a parent cgroup with the configured prefix. It uses cgroup v2
// if the cpu, memory and pids controllers are available there, and the three hierarchies of cgroup
// v1 otherwise. Probe decides this once; the two versions are never mixed. The package also owns a
// range of user IDs that no other process uses, one for each index, and a directory with copies of
// the programs that run in jails.
//
// It must not know which programs run in a cgroup.
//
// # How a jail is made
//
// No helper program runs before the program itself. A thread of this process creates the
// namespaces, builds the root directory in them, drops its privileges, starts the program, and
// exits. Its mount namespace is a copy of a prepared one, the program namespace, which contains
// only copies of programs and device nodes. Therefore the number of mounts on the host does not
// slow down a start, and none of them is ever visible in a jail. The files of a machine are
// detached bind mounts, made on the host and attached in the jail.
//
// # Invariants
//
// A thread that has entered a jail never runs anything else. A process inherits only the
// descriptors that were passed explicitly. It is in its cgroup and its jail from its first
// instruction on; its resource limits and OOM score are set shortly afterwards.
//
// The name of a cgroup is enough to find it after a restart: Adopt takes it over, and Sweep removes
// the cgroups that were not adopted. Destroy kills all processes in a cgroup and waits until they
// have exited. All methods may be called concurrently.
package jail
