#!/usr/bin/env bash
# Writes everything generated in this repository by running the tests that compare it, with -update.
# With --check it compares and changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

update=-update
[ "${1:-}" = --check ] && update=
for dir in internal/cli internal/config internal/httpapi api; do
	if grep -qs '"update"' "$dir"/*_test.go; then
		go test -count=1 -vet=off -run 'Golden|Generated' "./$dir" ${update:+-args $update}
	fi
done
