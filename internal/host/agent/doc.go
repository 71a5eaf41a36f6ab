// Package agent is the host agent: it implements hostapi.Host over machines, snapshots and bakes.
//
// It owns the layout of the data directory (machines, snapshots, templates, bake, images, drafts), the words in
// which the host answers, and who hears of events. How machines, images and networks are made it leaves
// to the packages below; users and sandboxes it does not know.
//
// Life: New, Open (which takes over what an earlier process left), Run until the context ends, then
// Close, which puts kept machines to sleep and destroys the others. A process that is killed instead
// leaves its machines running; the next Open takes them over. Methods of hostapi.Host may be called at
// once, after Open and until Close.
package agent
