#!/usr/bin/env bash
# Writes everything generated in this repository (OpenAPI, pages, goldens) by running the tests that
# compare it with -update. With --check it compares and changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

update="-args -update"
[ "${1:-}" = --check ] && update=
for dir in $(git grep -l '= flag.Bool("update"' -- '*_test.go' | xargs -n1 dirname | sort -u); do
	names=$(cat "$dir"/*_test.go | awk '/^func Test/ { name = $2; sub(/\(.*/, "", name) } /\*update|golden\(t/ { if (name) print name }' | sort -u | paste -sd'|')
	[ -z "$names" ] || go test -count=1 -vet=off -run "^($names)\$" "./$dir" $update
done
