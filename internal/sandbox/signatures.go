package sandbox

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/auth"
	"github.com/pandastack/pandastack/internal/guestapi"
)

// Service is every verb on sandboxes. See the package comment.
type Service struct{}

var errLater = api.Errorf(api.Unsupported, "not there yet")

// Run ends sandboxes whose time has come, follows the host's events and compares store and host, until
// ctx ends.
func (s *Service) Run(ctx context.Context) error { return errLater }

// Create makes a sandbox and answers when it runs.
func (s *Service) Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error) {
	return api.Sandbox{}, errLater
}

// List answers one page, newest first; 100 a page unless the filter says (at most 1000).
func (s *Service) List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (Page, error) {
	return Page{}, errLater
}

// Get answers one sandbox. One that ended answers not_found with when, why and by whom in message and
// details.
func (s *Service) Get(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return api.Sandbox{}, errLater
}

// Delete ends a sandbox in any state. It is right twice: one that ended already answers nil.
func (s *Service) Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error {
	return errLater
}

// Pause stops a running sandbox in memory.
func (s *Service) Pause(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return api.Sandbox{}, errLater
}

// Resume lets a paused sandbox go on.
func (s *Service) Resume(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return api.Sandbox{}, errLater
}

// Hibernate puts a running or paused sandbox to rest on disk.
func (s *Service) Hibernate(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return api.Sandbox{}, errLater
}

// Wake brings a hibernated sandbox back, or boots a failed one anew from its disk.
func (s *Service) Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return api.Sandbox{}, errLater
}

// Lifecycle tells when a sandbox ends by itself.
func (s *Service) Lifecycle(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Lifecycle, error) {
	return api.Lifecycle{}, errLater
}

// SetLifecycle changes what the patch names.
func (s *Service) SetLifecycle(ctx context.Context, p auth.Principal, id api.SandboxID, patch api.LifecyclePatch) (api.Lifecycle, error) {
	return api.Lifecycle{}, errLater
}

// TakeSnapshot puts a sandbox's moment into the registry; the sandbox goes on.
func (s *Service) TakeSnapshot(ctx context.Context, p auth.Principal, id api.SandboxID, req api.SnapshotRequest) (api.Snapshot, error) {
	return api.Snapshot{}, errLater
}

// Snapshots answers one page of the workspace's snapshots, newest first.
func (s *Service) Snapshots(ctx context.Context, p auth.Principal, f api.SnapshotFilter) (SnapshotPage, error) {
	return SnapshotPage{}, errLater
}

// Snapshot answers one snapshot.
func (s *Service) Snapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (api.Snapshot, error) {
	return api.Snapshot{}, errLater
}

// DeleteSnapshot removes a snapshot; one that something still needs is a conflict.
func (s *Service) DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) error {
	return errLater
}

// Fork copies a sandbox, memory and disk; the parent goes on.
func (s *Service) Fork(ctx context.Context, p auth.Principal, id api.SandboxID, req api.ForkRequest) (api.ForkAnswer, error) {
	return api.ForkAnswer{}, errLater
}

// ForkTree makes several children of one moment under a tree id.
func (s *Service) ForkTree(ctx context.Context, p auth.Principal, id api.SandboxID, req api.ForkTreeRequest) (api.ForkTree, error) {
	return api.ForkTree{}, errLater
}

// Promote makes a sandbox the winner of its tree.
func (s *Service) Promote(ctx context.Context, p auth.Principal, id api.SandboxID, req api.PromoteRequest) (api.Promotion, error) {
	return api.Promotion{}, errLater
}

// Guest is the inside of a sandbox. A hibernated one is woken first, one under way is waited for, a
// paused or failed one answers wrong_state. What is done through it counts as use, and its open
// processes, readers, watchers and connections keep the sandbox from being idle until they are closed.
// Its errors are the guest's, to be compared with guestapi's sentinels.
func (s *Service) Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error) {
	return nil, errLater
}

// Touch counts as use of the sandbox.
func (s *Service) Touch(ctx context.Context, p auth.Principal, id api.SandboxID) error {
	return errLater
}

// Usage is what a sandbox takes now.
func (s *Service) Usage(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Usage, error) {
	return api.Usage{}, errLater
}

// Logs is what a sandbox printed, alive or after its end.
func (s *Service) Logs(ctx context.Context, p auth.Principal, id api.SandboxID) (Logs, error) {
	return Logs{}, errLater
}

// Events lists what happened to a sandbox, alive or after its end, oldest first.
func (s *Service) Events(ctx context.Context, p auth.Principal, id api.SandboxID, q EventQuery) ([]Event, error) {
	return nil, errLater
}

// FollowEvents calls yield for the events that q selects and then for each as it happens, without a gap,
// until ctx ends, yield answers an error, or the sandbox has ended and its last event was told (nil).
func (s *Service) FollowEvents(ctx context.Context, p auth.Principal, id api.SandboxID, q EventQuery, yield func(Event) error) error {
	return errLater
}

// Ports lists declared ports and, while it runs, those that programs listen on. It wakes nothing.
func (s *Service) Ports(ctx context.Context, p auth.Principal, id api.SandboxID) ([]api.Port, error) {
	return nil, errLater
}

// DeclarePort gives a port a label; declaring again changes it.
func (s *Service) DeclarePort(ctx context.Context, p auth.Principal, id api.SandboxID, req api.PortRequest) (api.Port, error) {
	return api.Port{}, errLater
}

// RemovePort takes a declaration back; one that is not there is not_found.
func (s *Service) RemovePort(ctx context.Context, p auth.Principal, id api.SandboxID, port int) error {
	return errLater
}

// Explain says why a sandbox ended; not_found if it lives or nobody knows it.
func (s *Service) Explain(ctx context.Context, p auth.Principal, id api.SandboxID) (Ending, error) {
	return Ending{}, errLater
}

// Capacity is what the host has and has promised.
func (s *Service) Capacity(ctx context.Context) (api.Capacity, error) {
	return api.Capacity{}, errLater
}

// Counts tells how many sandboxes there are in each state, of all workspaces.
func (s *Service) Counts(ctx context.Context) (map[api.Status]int, error) { return nil, errLater }
