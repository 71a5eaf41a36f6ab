// Package vmm is the one interface to programs that run virtual machines, and its vocabulary.
//
// A driver starts monitors (one process per machine). A machine is the guest in a monitor. An image is memory and
// device state at rest, a directory that only its driver understands; its manifest says which hosts can restore it. A
// capture is the same of a machine that is paused, still in memory.
//
// States of a machine:
//
//	Boot ------------------------------> running <-> paused -> dead
//	Prepare -> prepared -- Load -------> running
//
// A fork is pause, capture, clone the disks, resume; then every child is prepared on the image that its parent was
// started on and loads the capture. A hibernation is pause, capture, save, kill. A wake is prepare on the saved image
// and load of its own state. There is no other way to make or stop a machine.
//
//	m, err := driver.Prepare(ctx, spec, image)
//	if err != nil {
//		return err
//	}
//	back.Push("kill machine", m.Kill)
//	conn, err := m.Dial(ctx)       // write the first request now; the guest reads it once it runs
//	...
//	err = m.Load(ctx, nil)
//
// Capabilities say what a driver can do; abilities that need methods are interfaces of their own (PreCapturer,
// ForkCapturer, MetadataSetter, Reclaimer and others), which a driver or its machines implement or not.
//
// The package contains no product noun and knows no driver. Every driver passes the suite in vmmtest.
package vmm
