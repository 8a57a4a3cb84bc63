# The image of deploy/daemonset.yaml: one static binary, and the iptables of both
# backends for it to run.
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
# Modules first: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH
ARG VERSION=unknown
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /miniproxy ./cmd/miniproxy

# Debian, because its iptables package holds iptables-nft and iptables-legacy side by
# side; images built on RHEL's have nft only. Which one a node needs is found out by
# the agent when it starts, so there is no wrapper script and no alternatives link to
# set. kmod loads the modules of a node on iptables-legacy.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iptables kmod \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /miniproxy /usr/local/bin/miniproxy
COPY LICENSE /LICENSE
ENTRYPOINT ["/usr/local/bin/miniproxy"]
