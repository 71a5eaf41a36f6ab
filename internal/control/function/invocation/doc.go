// Package invocation runs functions asynchronously: at once or later, with retries, in maps and from queues.
//
// An invocation is a row of function_runs: queued -> running -> success, error, timeout or canceled; running -> queued
// for another attempt. The runs of a map that wait for a place of it are held. Service.Submit adds one, and Service.Run
// claims those that are due and calls the function, through function.Invoker, for each.
//
// A claim is a lease with the name of the process and the number of the attempt. The process extends it while the
// attempt is under way. Every later write names both, so that of two processes that believe to have a run only one
// ends it. The lease of a process that was killed ends, and the run is attempted again, with a further number: the
// handler may have begun. So a handler is called at least once, never twice with the same number, and a run ends once.
//
// What follows from the end of a run is in the transaction that ends it: the invocation of its destination, or the job
// that posts the outcome to a URL; the next run of its map; the messages of its queue; the run of its schedule.
//
// Capacity is shared: a slot goes to the workspace with the fewest runs under way, and in it to the function with the
// fewest, and a workspace gets one only while it has fewer under way than there are free ones. So one workspace has at
// most half of them, and another one finds some free.
//
// Service.Run sleeps until the next run is due, a lease ends or a message can be received; changes by this process
// wake it. It looks at the store again after maxSleep at the latest, so that changes by other processes and of the
// clock count. After an error of the store, or a jump of the clock, leases of other processes are left alone for the
// length of one: they could not be extended, or only seem to have ended.
//
// All methods may be called concurrently. All errors of methods that users call are *api.Error.
package invocation
