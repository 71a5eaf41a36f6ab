// Package agent is the host agent: it implements hostapi.Host over machines, snapshots and bakes.
//
// It owns the layout of the data directory (machines, snapshots, templates, bake, images, drafts), the
// translation to the terms of hostapi, and the delivery of events. The packages below make machines, images and
// networks. It knows neither users nor sandboxes.
//
// Lifecycle: New, Open (which recovers the machines that an earlier process left), Run until the context ends, then
// Close, which hibernates persistent machines and destroys the others. If the process is killed instead, its
// machines keep running and the next Open adopts them. Until Open has succeeded the methods that read are
// hostapi.ErrUnavailable: the host cannot say yet what exists. All methods of hostapi.Host may be called
// concurrently, after Open and until Close.
package agent
