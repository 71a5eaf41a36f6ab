// Package fake is a driver without machines, for tests of what stands on vmm.
//
// It owns guests in memory (files, processes, a small shell) and answers for them over real sockets
// with the guest's end of the protocol. A capture copies all of a guest: files, and processes with what
// they were doing. An image holds the same in a file, so it survives whoever wrote it.
//
// A Driver stands for the host: its monitors live on when the component that started them is dropped,
// as processes do, and Adopt finds them. A test ends one with Crash, makes operations fail with FailNext
// or OnStep, and looks for leftovers with Monitors.
//
// The shell knows echo, printf, cat, true, false, exit, sleep, env, pwd, cd, touch, mkdir, rm, ls, test,
// hostname, id, export, sh and bash -c; variables, quotes, "&&", "||", ";", ">", ">>", ">&2" and "<". A process
// that reads its standard input has only that, one that ends on a signal ends at once.
//
// The disk of a guest is not kept apart from its memory: Boot always starts with the same files.
package fake
