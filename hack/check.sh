#!/usr/bin/env bash
# Everything that CI runs, in the order of the ladder: cheap and precise first. Goes
# on after a failure, so that one run shows them all. The last line counts tests,
# and each step that is not a test as one; the status is 1 if anything failed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
results=bin/results
rm -rf "$results"
mkdir -p "$results"

# step TARGET makes the target. A target that leaves no count of its own in $results
# counts as one test, by its status. So does one that counted no failure and yet
# failed.
step() {
	local target=$1 started=$SECONDS status=0
	printf '\n=== make %s\n' "$target"
	make --no-print-directory "$target" RESULTS="$results" || status=$?
	if [ "$status" -ne 0 ] && ! grep -qs ' [1-9][0-9]* failed' "$results/$target"; then
		echo '0 passed, 1 failed' >"$results/$target"
	elif [ ! -e "$results/$target" ]; then
		echo '1 passed, 0 failed' >"$results/$target"
	fi
	echo "=== status $status after $((SECONDS - started)) s"
}

for target in setup-test build lint unit-test kind-test fuzz root-test e2e chaos demo; do
	step "$target"
done

printf '\n'
for file in "$results"/*; do
	printf '%-10s %s\n' "$(basename "$file")" "$(cat "$file")"
done
bin/tally "$results"/*
