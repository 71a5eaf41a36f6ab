// Package schedule runs commands and sends requests at the moments of cron expressions.
//
// A schedule is a row with the moment of its next run. When that has come, one transaction adds a run with a job for it
// and sets the next moment, which follows from the one that was due and not from the clock. A run is unique by its
// schedule and its moment, so that each moment has one run, whatever is killed and however many processes share the
// store. The job queue (package job) runs it, at least once: an attempt whose process ended is followed by another one,
// which has a number of its own.
//
// A run executes a command in a sandbox of the user, or in a new one that it deletes afterwards, or sends a signed HTTP
// request. The package knows sandboxes as a user does, and nothing of hosts.
//
// Moments that could not be served in time are missed: those that are older than lateness when they are noticed. What
// happens to them is up to the schedule (catchup). Service.Run sleeps until the first moment of all schedules; changes
// by this process wake it, and it looks again after maxSleep at the latest, so that changes by other processes and of
// the clock count.
//
// All methods may be called concurrently. All errors of methods that users call are *api.Error.
package schedule
