// Package fctest is a strict fake of Firecracker without a virtual machine. It is a separate
// program that tests start instead of Firecracker.
//
// It checks everything that a driver can do wrong: the command line, the routes and fields of each
// release, the order of requests, their limits, the files of snapshots and when they may be
// written, the paths that a snapshot opens again, connections to guest sockets before and after a
// restore, the userfaultfd handshake, and exit codes. Guest memory is a real mapping. The guest is
// that of package fake; its state is stored in this memory, so that a restore really reads it. The
// package must not know the driver.
//
// The program is the test binary itself: its TestMain calls Main first, which returns if the
// process was not started as Firecracker. Install puts the program of one release into a directory
// of the test. Beside it are two files: faults.json, which Fail writes to make requests fail, and
// requests.log, which lists all starts and requests in order. In a jail the log is in the monitor's
// directory.
//
// InstallJailer adds a strict fake of Firecracker's jailer: its command line, its refusals, the
// order of its steps, the files it expects, and the cgroup that it may move to. It does not support settings
// of cgroups and daemonizing, which the driver does not use.
package fctest
