#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other: go test fuzzes one at a
# time.
#
#   hack/fuzz.sh [TIME]
#
# TIME is how long each gets (10s). Prints go test's JSON events.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
time=${1:-10s}
status=0

# Every input that reaches new code is made smaller first, for up to a minute if go test
# is left to itself: the whole of a short run.

# A line "Fuzz…" names a target of the package in the next "ok" line.
targets=$("$go" test -list '^Fuzz' ./... | awk '/^Fuzz/ { names = names " " $1 } /^ok/ { n = split(names, a, " "); for (i = 1; i <= n; i++) print a[i], $2; names = "" }')
while read -r target package; do
	"$go" test -json -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10x "$package" || status=1
done <<<"$targets"
exit "$status"
