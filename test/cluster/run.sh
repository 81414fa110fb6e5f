#!/usr/bin/env bash
# README's cluster section, word for word, on three machines a, b and c that are network
# namespaces of this one; then what it promises: answers that are being written go on,
# with the same text, while nodes are killed, drained and restarted.
#
#   sudo test/cluster/run.sh
#
# TRCTL is the binary (built if not given), PYTHON a Python with the package openai (an
# environment is made if not given), KEEP=1 leaves the logs. Needs root, ip and Linux's
# namespaces, and says that it was skipped where they are missing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$here/machines.sh"
source "$here/readme.sh"

prepare

# killed NODE NAME: SIGKILL while streams are being written; then the node is started again.
killed() {
  local node=$1 name=$2 began
  tell kill "$name" "${pids[$node]}"
  began=$(now_ms)
  ended "$node" 137
  if [ "$name" = leader ]; then
    until_true "the cluster can be changed again" changeable "${hosts[$node]}"
    say "changed again within $(($(now_ms) - began)) ms, program starts included"
  fi
  tell finish 12
  restart "$node"
  until_ready
}

now_ms() { date +%s%3N; }

# changeable MACHINE: a command of another machine's operator is applied.
changeable() {
  local other=b
  [ "$1" != b ] || other=c
  on "$other" trctl cluster token create --role admin --ttl 1m --timeout 1s >/dev/null
}

# drained NODE [COMMAND]: SIGTERM must let the node end in order, and nobody must notice.
# With a command the node comes back by that.
drained() {
  local node=$1 began=$SECONDS
  kill -TERM "${pids[$node]}"
  ended "$node" 0
  tell finish 6
  commands[$node]=${2:-${commands[$node]}}
  restart "$node"
  until_ready
  tell finish 6
  say "$node drained and started again in $((SECONDS - began)) s"
}

# removed NODE: a worker is taken out of the cluster; it ends, and nobody else notices.
removed() {
  local node=$1 name
  name=$(sed -n 's/.* runs worker \([^ ]*\) of .*/\1/p' "$work/out.$node")
  operate drain "$name" --wait
  operate cluster remove "$name"
  ended "$node" 1
  tell finish 12
}

say "three machines, net $net"
follow_readme
say "ready after $SECONDS s"
start_client
tell finish 18
killed "$(node_of b tiny-s)" entry
killed "$(node_of c tiny-l)" collaborator
killed "$(node_named "$(leader)")" leader
say "killed three after $SECONDS s"
for node in "${nodes[@]}"; do
  drained "$node"
done
say "drained all after $SECONDS s"
node=$(node_of c tiny-s)
drained "$node" "${commands[$node]/:7001/:7003}" # at another address
removed "$node"
gone=$node
stop_client

# Nothing of a prompt, a key or a token is anywhere.
say "looking for canaries"
operate get nodes -o yaml >"$work/dump.nodes"
operate get deployments -o yaml >"$work/dump.deployments"
operate get keys -o yaml >"$work/dump.keys"
operate cluster token list -o yaml >"$work/dump.tokens"
operate cluster backup - >"$work/dump.backup"
for node in "${nodes[@]}"; do
  grep -q level=DEBUG "$work/log.$node" || { echo "$node has logged too little to tell"; exit 1; }
  [ "$node" != "$gone" ] || continue
  on "${hosts[$node]}" curl --silent --fail --max-time 5 "http://${metrics[$node]}/metrics" >"$work/dump.metrics.$node"
done
printf '%s\n' "$CANARY" "$KEY" "${KEY#*-}" >"$work/canaries"
cut -d. -f4 "$work/a/home/"*.token >>"$work/canaries"
[ "$(wc -l <"$work/canaries")" = 6 ] && ! grep -q '^$' "$work/canaries"
# What init prints once, for people, holds tokens: it is their place.
if grep -rlF -f "$work/canaries" --exclude '*.token' "$work"/log.* "$work"/dump.* "$work"/*/lib "$work"/*/home; then
  echo "these files have canaries"
  exit 1
fi
say "ok in $SECONDS s"
