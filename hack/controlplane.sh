#!/usr/bin/env bash
# Builds the control-plane programs that the end-to-end tests run, from the
# versions that test/controlplane/go.mod pins, and keeps them outside the tree.
#
#   hack/controlplane.sh [PROGRAM ...]
#
# PROGRAM is kube-apiserver, kube-controller-manager or kube-proxy; without one,
# the first two. Prints the directory that holds them, and nothing else, on
# standard output. A first build takes minutes, so progress goes to standard error.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
module=$root/test/controlplane
# Seconds between two signs of life, for a CI system that ends silent jobs.
heartbeat=20

programs=("$@")
if [ ${#programs[@]} -eq 0 ]; then
	programs=(kube-apiserver kube-controller-manager)
fi
for program in "${programs[@]}"; do
	case $program in
	kube-apiserver | kube-controller-manager | kube-proxy) ;;
	*)
		echo "controlplane.sh: unknown program \"$program\"" >&2
		exit 2
		;;
	esac
done

version=$(awk '$1 == "k8s.io/kubernetes" || $2 == "k8s.io/kubernetes" { for (i = 1; i <= NF; i++) if ($i ~ /^v[0-9]/) { print $i; exit } }' "$module/go.mod")
if [ -z "$version" ]; then
	echo "controlplane.sh: no version of k8s.io/kubernetes in $module/go.mod" >&2
	exit 1
fi
digest=$(cat "$module/go.mod" "$module/go.sum" | sha256sum | cut -c1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/miniproxy/controlplane/$version-$digest
mkdir -p "$cache"

# Two test runs at once must not build the same program side by side.
exec 9>"$cache/.lock"
if ! flock --nonblock 9; then
	echo "controlplane.sh: waiting for another build in $cache" >&2
	flock 9
fi

# build compiles one program. The programs call themselves by the version they
# are built from; without -X they would say v0.0.0-master.
build() {
	local program=$1 started=$SECONDS pid
	echo "controlplane.sh: building $program $version (minutes, the first time)" >&2
	(cd "$module" && CGO_ENABLED=0 exec go build -trimpath \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" \
		-o "$cache/.$program" "k8s.io/kubernetes/cmd/$program") 9>&- >&2 &
	pid=$!
	trap 'kill "$pid" 2>/dev/null || true' EXIT
	while kill -0 "$pid" 2>/dev/null; do
		for ((i = 0; i < heartbeat; i++)); do
			sleep 1
			kill -0 "$pid" 2>/dev/null || break 2
		done
		echo "controlplane.sh: still building $program, $((SECONDS - started)) s" >&2
	done
	wait "$pid"
	trap - EXIT
	# Renamed only when whole: an interrupted build leaves no half a program.
	mv "$cache/.$program" "$cache/$program"
	echo "controlplane.sh: built $program in $((SECONDS - started)) s" >&2
}

for program in "${programs[@]}"; do
	[ -x "$cache/$program" ] || build "$program"
done
echo "$cache"
