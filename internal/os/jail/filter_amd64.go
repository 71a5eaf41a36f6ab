package jail

import "golang.org/x/sys/unix"

const nativeArch = unix.AUDIT_ARCH_X86_64

// denied are the system calls that a jailed process must not make.
var denied = append([]int{
	unix.SYS_IOPERM, unix.SYS_IOPL, unix.SYS_MKNOD, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT,
	unix.SYS__SYSCTL,
}, deniedEverywhere...)
