#!/usr/bin/env bash
# A kind cluster with miniproxy in the place of kube-proxy.
#
#   hack/kind.sh up     create it, load IMAGE (miniproxy:dev), deploy, wait
#   hack/kind.sh e2e    curl a ClusterIP and a NodePort in it
#   hack/kind.sh down   delete it
#
# Needs Docker and kubectl. kind itself comes from the PATH, or else is built at the
# version that test/kind/go.mod pins. CLUSTER (miniproxy) names the cluster.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
cluster=${CLUSTER:-miniproxy}
image=${IMAGE:-miniproxy:dev}
# Longer than a first pull of images takes on a slow line.
timeout=${TIMEOUT:-300s}
# How often a curl that is not answered well is tried again, one second apart.
attempts=${ATTEMPTS:-30}

kind() {
	if type -P kind >/dev/null; then
		command kind "$@"
	else
		go -C test/kind tool kind "$@"
	fi
}

# kube is kubectl, held to this cluster whatever context is current.
kube() {
	kubectl --context "kind-$cluster" "$@"
}

up() {
	if kind get clusters | grep -qx "$cluster"; then
		echo "kind.sh: cluster \"$cluster\" is there already"
	else
		kind create cluster --name "$cluster" --config "$root/hack/kind-config.yaml" --wait "$timeout"
	fi
	kind load docker-image "$image" --name "$cluster"
	deploy
	echo "kind.sh: waiting for the agent on every node"
	kube -n kube-system rollout status daemonset/miniproxy --timeout "$timeout"
	# CoreDNS talks to 10.96.0.1: it gets ready as soon as Services work, and no sooner.
	echo "kind.sh: waiting for CoreDNS, which needs a Service to get ready"
	kube -n kube-system rollout status deployment/coredns --timeout "$timeout"
}

# deploy applies deploy/daemonset.yaml with the image that was loaded, and tells the
# agents the API server's own address: the container name of the node that runs it,
# which every node resolves and which is in the server's certificate.
deploy() {
	kube apply -f - <<YAML
apiVersion: v1
kind: ConfigMap
metadata:
  name: miniproxy-api
  namespace: kube-system
data:
  endpoint: $cluster-control-plane:6443
YAML
	sed "s|image: miniproxy:dev|image: $image|" deploy/daemonset.yaml | kube apply -f -
	# A new image under an old name changes nothing that a DaemonSet would notice.
	kube -n kube-system rollout restart daemonset/miniproxy
}

# expect TEXT WHAT COMMAND... runs the command until its output holds TEXT.
expect() {
	local text=$1 what=$2 output
	shift 2
	for _ in $(seq "$attempts"); do
		if output=$("$@" 2>&1) && grep -q -- "$text" <<<"$output"; then
			echo "ok    $what"
			return
		fi
		sleep 1
	done
	printf 'FAIL  %s\n      %s\n      %s\n' "$what" "$*" "$output"
	return 1
}

# spread ADDRESS COMMAND... fetches the hostname from ADDRESS thirty times and wants
# all three pods to have answered. A fair choice misses one in 60,000 runs.
spread() {
	local address=$1 pods
	shift
	pods=$(for _ in $(seq 30); do
		"$@" curl -s --max-time 5 "http://$address/hostname"
		echo
	done | sort -u | grep -c '^echo-')
	echo "$pods pods answered"
}

e2e() {
	kube apply -f hack/kind-workload.yaml
	kube rollout status deployment/echo --timeout "$timeout"
	kube wait --for=condition=Ready pod/client --timeout "$timeout"

	local clusterip nodeport nodeip
	clusterip=$(kube get service echo -o 'jsonpath={.spec.clusterIP}'):80
	nodeport=$(kube get service echo -o 'jsonpath={.spec.ports[0].nodePort}')
	nodeip=$(kube get node "$cluster-worker" -o 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address}')
	local from_pod=(kube exec client --) from_node=(docker exec "$cluster-worker2")

	expect '^3 pods' "ClusterIP $clusterip from a pod" spread "$clusterip" "${from_pod[@]}"
	expect '^3 pods' "ClusterIP $clusterip from a node" spread "$clusterip" "${from_node[@]}"
	expect '^3 pods' "the Service's DNS name from a pod" spread echo.default.svc.cluster.local "${from_pod[@]}"
	expect '^3 pods' "NodePort $nodeip:$nodeport from another node" spread "$nodeip:$nodeport" "${from_node[@]}"
	expect '^3 pods' "NodePort 127.0.0.1:$nodeport from the node itself" spread "127.0.0.1:$nodeport" "${from_node[@]}"
	expect 'default/echo' "the Service is named in iptables -t nat -L KUBE-SERVICES" \
		docker exec "$cluster-worker2" iptables -t nat -L KUBE-SERVICES
}

down() {
	kind delete cluster --name "$cluster"
}

case ${1:-} in
up | e2e | down) "$1" ;;
*)
	sed -n '2,/^set/ { /^#/s/^# \{0,1\}//p }' hack/kind.sh >&2
	exit 2
	;;
esac
