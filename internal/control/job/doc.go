// Package job is a durable job queue: work that must be done although processes die.
//
// A job is a row: its kind selects a Worker, its payload is JSON, and an optional key makes it unique among the
// active jobs of its kind. Queue.Enqueue adds a job, alone or in a transaction together with other rows. Queue.Run
// claims jobs, at most Worker.Concurrency at a time, and calls Worker.Run for each. The package owns the rows of
// jobs and knows nothing about the work: kinds and payloads belong to the services that register workers.
//
// States: queued -> running -> done, failed or cancelled; running -> queued for another attempt.
//
// Invariants. A claim is a lease with an owner, an expiry and a fencing number that grows with every claim. The queue
// extends the lease while the worker runs. A worker that lost its lease (its process was suspended, or could not reach
// the store) has its context cancelled with ErrLeaseLost, and every write that it makes through its Lease fails with
// the same error, so that a job ends once. A job whose lease has expired is claimed again. Execution is therefore
// at-least-once, and completion is exactly-once: effects that must not happen twice belong into the transaction of
// Lease.Complete.
//
// An attempt that fails is repeated after an exponential back-off with jitter, until Worker.MaxAttempts. Errors wrapped
// by Permanent are not repeated. A shutdown returns running jobs to the queue and counts as no attempt; a killed
// process counts as one. Notifications (Queue.Notify) are hints: Run also polls, so a lost one only delays a job.
//
// Queues of several processes may share a store. Their clocks must agree to within a third of Config.Lease. The limits
// of concurrency are exact within a process; Worker.PerWorkspace may be exceeded for a moment by processes that claim
// at the same time.
//
// All methods may be called concurrently.
package job
