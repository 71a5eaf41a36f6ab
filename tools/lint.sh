#!/usr/bin/env bash
# Formatting, vet (with every build tag), staticcheck and repocheck. The only argument is the module path
# and version of staticcheck; where it cannot be fetched, the rest still runs and a line says so.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(gofmt -l $(git ls-files '*.go' | while read -r f; do [ -e "$f" ] && echo "$f"; done))
if [ -n "$unformatted" ]; then
	printf 'not formatted; run make fmt:\n%s\n' "$unformatted" >&2
	exit 1
fi
go vet -tags root,vm,e2e,slow,apps ./...
go run ./tools/repocheck
tools=$PWD/.cache/tools
if [ ! -x "$tools/staticcheck-${1##*@}" ]; then
	mkdir -p "$tools"
	if GOBIN="$tools" go install "$1" 2>"$tools/install.log"; then
		mv "$tools/staticcheck" "$tools/staticcheck-${1##*@}"
	fi
fi
if [ -x "$tools/staticcheck-${1##*@}" ]; then
	"$tools/staticcheck-${1##*@}" -tags root,vm,e2e,slow,apps ./...
else
	echo "lint: $1 could not be fetched ($(tail -1 "$tools/install.log")); went on without it" >&2
fi
