// Package buildplan is the program pandastack-build: inside a machine it brings in the source of an app, plans its
// build with railpack, executes the plan step by step, and says what it found out.
//
// The program reads a buildevent.Request from its standard input and writes buildevent.Events to its standard output.
// Secrets are in the request, and from there in the environment of commands that may see them: never in a file of the
// disk. Every run is one step, so that the host can keep the machine as it is between two of them; whatever a step
// started has ended when the program exits.
//
// The package trusts neither the source nor what it says, and protects only the host's time: sizes, output and
// processes are bounded. The machine protects everything else.
package buildplan
