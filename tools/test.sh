#!/usr/bin/env bash
# Runs test phases and says how long each took: unit, root, vm, e2e, clouds, slow, apps, memory, soak. A tagged phase
# runs the tests of files with its build tag. All phases run even when one fails; the exit status is 1 when one did.
set -uo pipefail
cd "$(dirname "$0")/.."

unit() {
	local race= status=0 packages long='(Every(Step|Operation|Write|Request)|AtScale|Postgres)'
	packages=$(go list ./... | grep -v /test/)
	# Tests that fail and kill an operation after each of its steps, and those with thousands of rows, repeat one path
	# many times, and those over PostgreSQL repeat what runs over SQLite; other tests of these packages show its races.
	# Without the race detector they take a quarter of the time.
	if command -v gcc >/dev/null; then
		# SQLite was translated from C, with a memory and locks of its own. To check each of its pointers, as comes
		# with -race, and to watch each of its accesses is two thirds of what tests with a store take.
		race="-race -gcflags=modernc.org/...=-d=checkptr=0"
		race="$race -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc/...=-race=false"
		CGO_ENABLED=1 go test $race -timeout 10m -skip "$long\$" $packages || status=1
	else
		echo "test: no C compiler here, so the race detector is off" >&2
		go test -timeout 10m -skip "$long\$" $packages || status=1
	fi
	go test -timeout 10m -run "$long\$" \
		$(grep -rlE --include='*_test.go' "^func Test[A-Za-z]*$long\\(" internal | xargs -n1 dirname | sort -u | sed 's|^|./|') ||
		status=1
	return $status
}

# tagged TAG LIMIT PACKAGES [TAGS]: the tests of files that begin with "//go:build TAG", built with more tags. As many
# packages are tested at once. Most of the time such tests wait, for the kernel or for one virtual processor.
tagged() {
	local all names
	all=$(grep -rl --include='*_test.go' --exclude-dir=.cache --exclude-dir=node_modules "^//go:build $1\$" .)
	names=$(echo "$all" | xargs sed -n 's/^func \(Test[A-Za-z0-9_]*\)(t \*testing.T).*/\1/p' | sort -u | paste -sd'|')
	go test -tags "$1${4:+,$4}" -vet=off -count=1 -timeout "$2" -p "$3" -run "^($names)\$" \
		$(echo "$all" | xargs -n1 dirname | sort -u)
}

root() { tagged root 10m 3; }
vm() { tagged vm 20m 2; }
e2e() { tagged e2e 40m 2; }
clouds() { tagged clouds 20m 1 gcs,azure; }
slow() { tagged slow 240m 1; }
apps() { tagged apps 120m 1; }

# soak: what phase e2e does to a node, and to a database with its relay, in a few rounds, in many.
soak() {
	local status=0
	go test -tags e2e -vet=off -count=1 -timeout 180m -v ./test/chaos -chaos.scale 20 || status=1
	go test -tags e2e -vet=off -count=1 -timeout 30m -v -run '^TestKilledRelayAndServer$' \
		./internal/control/database/walrelay -walrelay.rounds 50 || status=1
	return $status
}

# memory: guests of more memory sizes than phase vm boots.
memory() {
	go test -tags vm -vet=off -count=1 -timeout 30m -v -run '^TestMemorySizes$' ./internal/vmm/qemu -qemu.around
}

failed=
for phase in "$@"; do
	began=$(date +%s)
	"$phase" || failed="$failed $phase"
	printf '== %-5s %4d s%s\n' "$phase" $(($(date +%s) - began)) "$(case "$failed " in *" $phase "*) echo '  FAILED' ;; esac)"
done
[ -z "$failed" ] || exit 1
