#!/usr/bin/env bash
# Formatting, vet, staticcheck, errorlint and shellcheck; prints what is wrong and
# ends with status 1 if anything is. `make lint` builds the linters first.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
status=0

# check NAME COMMAND... runs the command; it fails by its status or by printing.
check() {
	local name=$1 output
	shift
	if output=$("$@" 2>&1) && [ -z "$output" ]; then
		echo "ok    $name"
		return
	fi
	printf 'FAIL  %s\n%s\n' "$name" "$output"
	status=1
}

mapfile -t gofiles < <(git ls-files --cached --others --exclude-standard '*.go')
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)

check gofmt gofmt -l "${gofiles[@]}"
check vet "$go" vet ./...
check 'vet test/kind' "$go" -C test/kind vet ./...
check staticcheck bin/staticcheck ./...
check errorlint bin/go-errorlint -errorf ./...
check shellcheck shellcheck "${scripts[@]}"
exit "$status"
