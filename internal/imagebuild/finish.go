package imagebuild

import (
	"fmt"
	"strings"

	"github.com/pandastack/pandastack/internal/recipe"
)

// prologue is the same in every template. There is no service manager: the guest agent is the first
// process. Host name, machine id and name servers are placeholders that it replaces after every start.
const prologue = `#!/bin/sh
# Finishes a root file system. The only argument is its directory.
set -eu
chroot "$1" /bin/sh -eu <<'END_OF_FINISH'
export DEBIAN_FRONTEND=noninteractive HOME=/root LC_ALL=C.UTF-8
echo sandbox > /etc/hostname
printf '127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n' > /etc/hosts
rm -f /etc/resolv.conf
: > /etc/resolv.conf
: > /etc/machine-id
mkdir -p /var/lib/dbus
rm -f /var/lib/dbus/machine-id
printf 'LANG=C.UTF-8\n' > /etc/default/locale
printf '/dev/vda / ext4 defaults,noatime 0 1\n' > /etc/fstab
`

const epilogue = `find /tmp /var/tmp -mindepth 1 -delete
rm -rf /var/lib/apt/lists/* /var/log/*.log /var/log/apt /var/cache/debconf/*-old
END_OF_FINISH
`

// addUser makes the user with the first ordinary id, whoever had it, and lets it become root without a
// password: the border of a sandbox is its machine.
const addUser = `useradd --create-home --uid 1000 --user-group --shell "$([ -x /bin/bash ] && echo /bin/bash || echo /bin/sh)" %[1]s
if [ -d /etc/sudoers.d ]; then
	printf '%[1]s ALL=(ALL:ALL) NOPASSWD: ALL\n' > /etc/sudoers.d/%[1]s
	chmod 0440 /etc/sudoers.d/%[1]s
fi
`

// finish is the script that turns a fresh root file system into the recipe's. The recipe's own commands
// run last; the mark they cannot contain ends the text that is passed to the shell inside.
func finish(r recipe.Recipe) string {
	var b strings.Builder
	b.WriteString(prologue)
	if r.User != "root" {
		fmt.Fprintf(&b, addUser, r.User)
	}
	fmt.Fprintf(&b, "mkdir -p %[1]s\n", quote(r.Workdir))
	if r.User != "root" {
		fmt.Fprintf(&b, "chown %s: %s\n", r.User, quote(r.Workdir))
	}
	for _, cmd := range r.Setup {
		fmt.Fprintf(&b, "sh -eu -c %s\n", quote(cmd))
	}
	b.WriteString(epilogue)
	return b.String()
}

// quote makes one word of the shell out of any text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
