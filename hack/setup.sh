#!/usr/bin/env bash
# Installs the commands that miniproxy and its demo run, on Debian and Ubuntu, and
# does nothing when all of them are there.
#
#   hack/setup.sh           what the demo needs: curl, iproute2, iptables, conntrack
#   hack/setup.sh --test    what the tests and the linters need as well (Debian starts
#                           etcd as a service; the tests do not use that one)
#   hack/setup.sh --bench   what the demo needs and the comparison with kube-proxy: nft
#
# On other systems it names the commands that are missing.
set -euo pipefail

# command:package
wanted=(curl:curl ip:iproute2 iptables:iptables conntrack:conntrack)
for_tests=(etcd:etcd-server jq:jq shellcheck:shellcheck)

case ${1-} in
'') ;;
--test) wanted+=("${for_tests[@]}") ;;
--bench) wanted+=(nft:nftables) ;;
*)
	echo "usage: hack/setup.sh [--test | --bench]" >&2
	exit 2
	;;
esac

# Where these commands are, also for a user whose PATH does not lead there.
PATH=$PATH:/usr/sbin:/sbin

commands=()
packages=()
for pair in "${wanted[@]}"; do
	if ! command -v "${pair%:*}" >/dev/null; then
		commands+=("${pair%:*}")
		packages+=("${pair#*:}")
	fi
done
[ ${#packages[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "setup.sh: commands are missing: ${commands[*]}" >&2
	echo "setup.sh: there is no apt-get here; install them with this system's own tool" >&2
	exit 1
fi

as_root=()
if [ "$(id -u)" != 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "setup.sh: run this as root: apt-get install ${packages[*]}" >&2
		exit 1
	fi
	as_root=(sudo)
fi

echo "setup.sh: installing ${packages[*]}"
# The lists may be old, or absent as in a fresh container; if they cannot be brought
# up to date, those that are there may do.
"${as_root[@]}" apt-get update -q || echo "setup.sh: cannot update the package lists" >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
	apt-get install -q -y --no-install-recommends "${packages[@]}"
