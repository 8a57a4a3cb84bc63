#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other: go test fuzzes one at a
# time.
#
#   hack/fuzz.sh [EFFORT]
#
# EFFORT is what go test -fuzztime takes: 10000x (the default) is a number of inputs for
# each target, 1m a time; an hour is the most. Before Go 1.27 the end of a time is
# sometimes taken for a failure, "context deadline exceeded" (golang/go#75804), so CI
# counts. Prints go test's JSON events.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
effort=${1:-10000x}
status=0

# A line "Fuzz…" names a target of the package in the next "ok" line.
targets=$("$go" test -list '^Fuzz' ./... | awk '/^Fuzz/ { names = names " " $1 } /^ok/ { n = split(names, a, " "); for (i = 1; i <= n; i++) print a[i], $2; names = "" }')
while read -r target package; do
	# Every input that reaches new code is made smaller first, for up to a minute if go
	# test is left to itself: the whole of a short run. And it waits for ever for an
	# input that hangs.
	timeout 1h "$go" test -json -run '^$' -fuzz "^$target\$" -fuzztime "$effort" -fuzzminimizetime 10x "$package" || status=1
done <<<"$targets"
exit "$status"
