package jail

import "golang.org/x/sys/unix"

const nativeArch = unix.AUDIT_ARCH_AARCH64

// denied are the system calls that a jailed process must not make.
var denied = deniedEverywhere
