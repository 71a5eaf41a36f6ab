// Package seccomp makes filters that allow a list of system calls, and reports calls that are not in it.
//
// It owns the compilation of a Policy into a program for the kernel (seccomp(2)) and the binary interface of
// notifications (seccomp_unotify(2)), with the only unsafe code for it. It must not know which program is
// filtered, nor why it makes a call.
//
// A call that is not allowed fails with ENOSYS, as on a kernel that does not have it: libraries then use another
// call, as they do on old kernels, and a program that cannot go on without it reports an error. The process is not
// killed, because a rare path of a program that does no harm would otherwise cost its work, and the call does
// nothing in either case. The process that installed the filter is notified of every such call, so that each can be
// logged. Without that process the calls fail in the same way.
package seccomp
