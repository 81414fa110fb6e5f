#!/bin/bash
# A hand-off between two network namespaces, over a veth pair, with TLS 1.3 and client certificates: test/cluster/hop.sh
#
# Prints BenchmarkHop of internal/cluster/workernode; half of a round is a hop. Needs root and ip (iproute2). COUNT rounds of
# 20,000 hops (5).
set -eu
cd "$(dirname "$0")/../.."
near=trctl-hop-a-$$ far=trctl-hop-b-$$
trap 'ip netns del "$near" 2>/dev/null; ip netns del "$far" 2>/dev/null; rm -rf "$work"' EXIT
work=$(mktemp -d)
go test -c -o "$work/hop.test" ./internal/cluster/workernode
ip netns add "$near"
ip netns add "$far"
ip -n "$near" link add name eth0 type veth peer name eth0 netns "$far"
for side in "$near 1" "$far 2"; do
  read -r name i <<<"$side"
  ip -n "$name" addr add "10.78.0.$i/24" dev eth0
  ip -n "$name" link set eth0 up
  ip -n "$name" link set lo up
done
TRCTL_HOP_NETNS=/var/run/netns/$far TRCTL_HOP_ADDR=10.78.0.2:7000 ip netns exec "$near" "$work/hop.test" -test.run '^$' -test.bench 'Hop$' \
  -test.benchtime 20000x -test.count "${COUNT:-5}"
