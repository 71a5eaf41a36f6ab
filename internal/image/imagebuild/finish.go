package imagebuild

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/lib/command"
)

// mounts gives programs in the root the file systems that they expect. The mounts are in a namespace of their own and
// end with it.
const mounts = `#!/bin/sh
# Finishes a root file system. The only argument is its directory.
set -eu
mount -t proc proc "$1/proc"
mount -t sysfs -o ro sysfs "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
mount -t tmpfs tmpfs "$1/tmp"
`

// prologue is the same in every template. It sets up no service manager: the guest agent is the first process. Host
// name, machine ID and name servers are placeholders that the agent replaces after every start.
//
// Clients of E2B run every command in a login shell, so every command pays for the login files. The ones written here
// do the same as the distribution's, in the same order and in fewer steps, and start no program for values that bash
// knows.
const prologue = `chroot "$1" /bin/sh -eu <<'END_OF_FINISH'
export DEBIAN_FRONTEND=noninteractive HOME=/root LC_ALL=C.UTF-8 ` +
	`PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset TMPDIR
echo sandbox > /etc/hostname
printf '127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n' > /etc/hosts
rm -f /etc/resolv.conf
: > /etc/resolv.conf
: > /etc/machine-id
mkdir -p /var/lib/dbus
rm -f /var/lib/dbus/machine-id
printf 'LANG=C.UTF-8\n' > /etc/default/locale
printf '/dev/vda / ext4 defaults,noatime 0 1\n' > /etc/fstab
cat > /etc/profile <<'END_OF_PROFILE'
if [ "${EUID:-$(id -u)}" -eq 0 ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
  PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games
fi
export PATH
case $-${BASH_VERSION-} in *i*[0-9]*) [ ! -f /etc/bash.bashrc ] || . /etc/bash.bashrc ;; esac
for i in /etc/profile.d/*.sh; do
  [ ! -r "$i" ] || . "$i"
done
unset i
END_OF_PROFILE
mkdir -p /etc/skel
cat > /etc/skel/.profile <<'END_OF_PROFILE'
[ -z "${BASH_VERSION-}" ] || [ ! -f ~/.bashrc ] || . ~/.bashrc
[ ! -d ~/bin ] || PATH=~/bin:$PATH
[ ! -d ~/.local/bin ] || PATH=~/.local/bin:$PATH
END_OF_PROFILE
`

const epilogue = `find /tmp /var/tmp -mindepth 1 -delete
rm -rf /root/.cache /var/lib/apt/lists/* /var/log/*.log /var/log/apt /var/cache/debconf/*-old
END_OF_FINISH
`

// addUser makes the user with the first ordinary ID, removing any other owner of it, and lets it become root without
// a password: the isolation of a sandbox is its machine.
const addUser = `useradd --create-home --uid 1000 --user-group ` +
	`--shell "$([ -x /bin/bash ] && echo /bin/bash || echo /bin/sh)" %[1]s
if [ -d /etc/sudoers.d ]; then
	printf '%[1]s ALL=(ALL:ALL) NOPASSWD: ALL\n' > /etc/sudoers.d/%[1]s
	chmod 0440 /etc/sudoers.d/%[1]s
fi
`

// wheelInstall installs pinned wheels with the root's own Python and compiles them. The distribution may reserve that
// Python for itself, which does not matter in a sandbox.
const wheelInstall = `python3 -m pip install --quiet --no-index --no-deps --require-hashes ` +
	`--root-user-action=ignore --no-warn-script-location ` +
	`--find-links /run/wheels%[1]d -r /run/wheels%[1]d.txt%[2]s
`

// finish turns a root file system of packages and parts into the recipe's. It runs without a network, in namespaces
// of its own, which end with it, whatever happens.
func finish(ctx context.Context, r recipe.Recipe, houses []wheelhouse, work string, log command.Log) error {
	script := filepath.Join(work, "finish.sh")
	if err := os.WriteFile(script, []byte(finishScript(r, houses)), 0o755); err != nil {
		return err
	}
	opt := command.Options{
		Log: log,
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Attr: &syscall.SysProcAttr{
			Unshareflags: syscall.CLONE_NEWNS,
			Cloneflags:   syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		},
		Kill: true,
	}
	return command.Run(ctx, opt, script, filepath.Join(work, "root"))
}

// finishScript returns the script of finish. The recipe's own commands run last; the text passed to the inner shell
// ends with a mark that they cannot contain.
func finishScript(r recipe.Recipe, houses []wheelhouse) string {
	var b strings.Builder
	b.WriteString(mounts)
	for i, h := range houses {
		fmt.Fprintf(
			&b,
			"mkdir \"$1/run/wheels%[1]d\"\nmount --bind %[2]s \"$1/run/wheels%[1]d\"\ncp %[3]s "+
				"\"$1/run/wheels%[1]d.txt\"\n",
			i,
			quote(h.dir),
			quote(h.list),
		)
	}
	b.WriteString(prologue)
	if r.User != "root" {
		fmt.Fprintf(&b, addUser, r.User)
	}
	fmt.Fprintf(&b, "mkdir -p %[1]s\n", quote(r.Workdir))
	if r.User != "root" {
		fmt.Fprintf(&b, "chown %s: %s\n", r.User, quote(r.Workdir))
	}
	for i, h := range houses {
		into := " --break-system-packages"
		if h.to != "" {
			into = " --target " + quote(h.to)
		}
		fmt.Fprintf(&b, wheelInstall, i, into)
	}
	for _, cmd := range r.Setup {
		fmt.Fprintf(&b, "sh -eu -c %s\n", quote(cmd))
	}
	for i, d := range r.Disks {
		fmt.Fprintf(&b, "mkdir -p %[1]s\nprintf '%%s\\n' %[2]s >> /etc/fstab\n", quote(d.Mount), quote(fstab(i, d)))
		if d.Owner != "" {
			fmt.Fprintf(&b, "chown %s %s\n", d.Owner, quote(d.Mount))
		}
	}
	b.WriteString(epilogue)
	return b.String()
}

// fstab returns the line of a data disk, for programs that read it. The guest agent mounts the disk without reading
// it.
func fstab(i int, d recipe.Disk) string {
	options := strings.Join(append([]string{"defaults"}, d.Options...), ",")
	return fmt.Sprintf("/dev/vd%c %s ext4 %s 0 2", 'b'+rune(i), d.Mount, options)
}

// quote returns any text as one word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
