// Package fake is a driver without machines, for tests of code that uses package vmm.
//
// It owns guests in memory (files, processes, a small shell) and serves them over real sockets with the guest's end
// of the protocol. A capture copies all of a guest: its files, and its processes with their progress. An image holds
// the same in a file, so it outlives the driver that wrote it.
//
// A Driver stands for the host: its monitors continue when the component that started them is dropped, as processes
// do, and Adopt finds them. A test ends one with Crash, makes operations fail with FailNext or OnStep, and looks for
// leftovers with Monitors.
//
// The shell knows echo, printf, cat, true, false, exit, sleep, env, pwd, cd, touch, mkdir, rm, ls, test, hostname,
// id, export, sh and bash -c; variables, quotes, "&&", "||", ";", ">", ">>", ">&2" and "<".
// A process that reads its standard input does nothing else; one that gets a signal ends at once.
//
// A guest's disk is not separate from its memory: Boot always starts with the same files.
package fake
