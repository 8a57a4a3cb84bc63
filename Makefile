# Every rung of the test ladder is one target; `make` alone lists them.
# docs/testing.md says what each of them needs and proves.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

GO ?= go
IMAGE ?= miniproxy:dev
# For each fuzz target: inputs (10000x) or a time (1m).
FUZZTIME ?= 10000x
CHAOSTIME ?= 1m
# The Go vulnerability database; file:///DIR for a copy of it.
VULNDB ?= https://vuln.go.dev
# What test results are written to, for check to add up.
RESULTS ?= bin/results

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Packages with tests that need root: they say that they obey MINIPROXY_REQUIRE_ROOT,
# which turns their skips into failures.
ROOT_PACKAGES = $(shell $(GO) list $$(grep -rlE 'MINIPROXY_REQUIRE_ROOT|/pkg/lab/labtest"' --include='*_test.go' cmd pkg test | xargs -n1 dirname | grep -vx test/e2e | sort -u | sed 's|^|./|'))
PACKAGES = $(shell $(GO) list ./... | grep -v '/test/e2e$$')

# Programs that need root are started with sudo by everybody else.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo 'sudo --preserve-env')
AS_ROOT := $(if $(SUDO),-exec '$(SUDO)')

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: ## install what the demo runs, by package name: iptables, conntrack, iproute2, curl
	hack/setup.sh

.PHONY: setup-test
setup-test: ## install what the tests and linters run, too: etcd-server, jq, shellcheck
	hack/setup.sh --test

.PHONY: build
build: ## build bin/miniproxy, a static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/miniproxy ./cmd/miniproxy

.PHONY: demo
demo: setup build ## show the main job in network namespaces: no cluster needed, root is
	$(SUDO) bin/miniproxy demo

.PHONY: check
check: ## everything that CI runs
	hack/check.sh

.PHONY: test
test: bin/tally ## tests that need nothing; those that need root are skipped without it
	$(GO) test -json -race -shuffle=on $(PACKAGES) | bin/tally -o $(RESULTS)/$@

# The rest of test, for check: root-test runs every test of its packages.
.PHONY: unit-test
unit-test: bin/tally
	$(GO) test -json -race -shuffle=on $(filter-out $(ROOT_PACKAGES),$(PACKAGES)) | bin/tally -o $(RESULTS)/$@

.PHONY: fuzz
fuzz: bin/tally ## every fuzz target, with FUZZTIME inputs (10000x) each
	GO='$(GO)' hack/fuzz.sh $(FUZZTIME) | bin/tally -o $(RESULTS)/$@

.PHONY: root-test
root-test: bin/tally ## tests against the kernel, in network namespaces: needs root
	MINIPROXY_REQUIRE_ROOT=1 $(GO) test -json -race -shuffle=on $(AS_ROOT) $(ROOT_PACKAGES) | bin/tally -o $(RESULTS)/$@

.PHONY: e2e
e2e: build bin/tally ## the binary, a real API server, real packets, both backends: needs root
	MINIPROXY_REQUIRE_ROOT=1 MINIPROXY_BIN=$(CURDIR)/bin/miniproxy $(GO) test -json -timeout 60m -skip '^Test(Chaos|Compare.*)$$' $(AS_ROOT) ./test/e2e | bin/tally -o $(RESULTS)/$@

.PHONY: compare
compare: build ## times of repair and failover, miniproxy and the real kube-proxy: minutes, and root
	MINIPROXY_REQUIRE_ROOT=1 MINIPROXY_BIN=$(CURDIR)/bin/miniproxy $(GO) test -v -count=1 -timeout 60m -run '^TestCompare' $(AS_ROOT) ./test/e2e -args -compare

# How bench-compare measures, beside ROUNDS, FLIPS, CONNECTIONS, BOUND, MODES and LOGS:
# docs/performance.md says what they mean.
SERVICES ?= 1000

.PHONY: bench
bench: ## Go benchmarks: render, plan, encode and decode, trace
	$(GO) test -run '^$$' -bench . -benchmem ./pkg/render ./pkg/ruleset ./pkg/proxier ./pkg/tracker ./pkg/trace

.PHONY: bench-compare
bench-compare: build ## miniproxy against kube-proxy, SERVICES=1000: minutes, and root
	@hack/setup.sh --bench
	@$(GO) build -o bin/bench ./test/bench
	@$(SUDO) bin/bench -miniproxy bin/miniproxy -kube-proxy "$$(hack/controlplane.sh kube-proxy)/kube-proxy" \
		-services $(SERVICES) $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(FLIPS),-flips $(FLIPS)) $(if $(CONNECTIONS),-connections $(CONNECTIONS)) \
		$(if $(BOUND),-bound $(BOUND)) $(if $(MODES),-modes $(MODES)) $(if $(LOGS),-logs $(LOGS)) | tee bin/bench-$(SERVICES).md

# The table of what happened is worth reading in a run that passed, too.
.PHONY: chaos
chaos: build ## random events and faults under traffic, CHAOSTIME (1m) for each backend: needs root
	MINIPROXY_REQUIRE_ROOT=1 MINIPROXY_BIN=$(CURDIR)/bin/miniproxy $(GO) test -v -count=1 -timeout 0 -run '^TestChaos$$' $(AS_ROOT) ./test/e2e -args -chaos $(CHAOSTIME)

.PHONY: kind-test
kind-test: bin/tally ## hack/kind-config.yaml and the kind scripts, judged by kind's own code
	$(GO) -C test/kind test -json -count=1 ./... | bin/tally -o $(RESULTS)/$@

.PHONY: lint
lint: bin/staticcheck ## gofmt, vet, staticcheck, errorlint, shellcheck
	GO='$(GO)' hack/lint.sh

.PHONY: vulncheck
vulncheck: bin/staticcheck ## known vulnerabilities that the code can reach; needs vuln.go.dev
	bin/govulncheck -db $(VULNDB) ./...

.PHONY: image
image: ## build the container image IMAGE (miniproxy:dev); needs Docker
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .

.PHONY: kind-up
kind-up: image ## a kind cluster with miniproxy in the place of kube-proxy; needs Docker and kubectl
	IMAGE=$(IMAGE) hack/kind.sh up

.PHONY: kind-e2e
kind-e2e: ## curl a ClusterIP and a NodePort in that cluster
	hack/kind.sh e2e

.PHONY: kind-down
kind-down: ## delete that cluster
	hack/kind.sh down

.PHONY: clean
clean: ## delete bin
	rm -rf bin

# go's own cache decides what is stale.
.PHONY: bin/tally
bin/tally:
	@mkdir -p $(RESULTS)
	@$(GO) build -o bin/tally ./hack/tally

# One directory of linters, at the versions that hack/tools/go.mod pins.
.PHONY: bin/staticcheck
bin/staticcheck:
	@GOBIN=$(CURDIR)/bin $(GO) -C hack/tools install tool
