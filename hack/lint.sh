#!/usr/bin/env bash
# Formatting, go.mod, vet, staticcheck, errorlint and shellcheck; prints what is wrong
# and ends with status 1 if anything is. `make lint` builds the linters first.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$PWD/bin
go=${GO:-go}
status=0

# check NAME COMMAND... runs the command, and shows its output only if it fails.
check() {
	local name=$1 output
	shift
	if output=$("$@" 2>&1); then
		echo "ok    $name"
	else
		printf 'FAIL  %s\n%s\n' "$name" "$output"
		status=1
	fi
}

# formatted fails where gofmt finds something; gofmt itself does not.
# shellcheck disable=SC2317 # called by check
formatted() {
	local unformatted
	unformatted=$(gofmt -l "$@") || return
	[ -z "$unformatted" ] || { echo "$unformatted" && return 1; }
}

# within DIRECTORY COMMAND... runs the command there.
# shellcheck disable=SC2317 # called by check
within() {
	(cd "$1" && shift && "$@")
}

mapfile -t gofiles < <(git ls-files --cached --others --exclude-standard '*.go')
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)

check gofmt formatted "${gofiles[@]}"
for module in . test/kind; do
	check "go.mod of $module" "$go" -C "$module" mod tidy -diff
	check "vet $module" "$go" -C "$module" vet ./...
	check "staticcheck $module" within "$module" "$bin/staticcheck" ./...
	check "errorlint $module" within "$module" "$bin/go-errorlint" -errorf ./...
done
check shellcheck shellcheck "${scripts[@]}"
exit "$status"
