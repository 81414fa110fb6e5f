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

make_machines
export PATH=$work/bin:$PATH
[ -n "${PYTHON:-}" ] || { python3 -m venv "$work/python"; PYTHON=$work/python/bin/python; "$PYTHON" -m pip install --quiet --disable-pip-version-check -r "$root/test/sdk/python/requirements.txt"; }
[ -n "${TRCTL:-}" ] || { TRCTL=$work/trctl; (cd "$root" && go build -o "$TRCTL" ./cmd/trctl); }
ln -s "$(realpath "$TRCTL")" "$work/bin/trctl"

# What must be in no log, metric, state or file of any node: bytes of prompts, of headers,
# of keys and of tokens.
CANARY=canary-$(tr -dc a-z0-9 </dev/urandom | head -c 16 || true)
export CANARY TRCTL_LOG_LEVEL=debug

# follow_readme: its blocks, each on the machines that it names. What does not end by
# itself is a node.
follow_readme() {
  local machine block command script
  while IFS=$'\t' read -r machine block; do
    script=
    while IFS= read -r command; do
      case $command in
      "trctl cluster init"* | "trctl cluster join"* | "trctl worker join"* | "trctl gateway join"*) start "$machine" "$command" ;;
      *) script+=$command$'\n' ;;
      esac
    done < <(tr '\037' '\n' <<<"$block")
    [ -n "$script" ] || continue
    case $script in
    *curl*) until_ready ;;
    esac
    say "on $machine: ${script//$'\n'/; }"
    on "$machine" bash -euo pipefail -c "$script" >"$work/said" || { cat "$work/said"; return 1; }
    # To be copied to the machines that join.
    cp "$work/a/home/"*.token "$work/b/home/"
    cp "$work/a/home/"*.token "$work/c/home/"
  done < <(python3 "$here/commands.py" "$root/README.md")
  grep -q '^data: \[DONE\]' "$work/said" || { echo "README's question was not answered:"; cat "$work/said"; return 1; }
}

# until_ready waits for what the section sets up: three voters, four replicas, a
# deployment that both gateways serve.
until_ready() {
  until_true "three control nodes vote" voters_are 3
  until_true "all replicas are ready" replicas_are 4
  until_true "gateway a is ready" ready a
  until_true "gateway b is ready" ready b
}

operate() { on a trctl "$@"; }
ready() { in_lan curl --silent --fail --max-time 2 --output /dev/null "http://$(address "$1"):8000/readyz"; }
voters_are() { [ "$(operate cluster status -o json | read_json 'sum(s["voter"] for s in it["consensus"]["servers"])')" = "$1" ]; }
replicas_are() { [ "$(operate get placements -o json | read_json 'sum(r["phase"] == "ready" for r in it)')" = "$1" ]; }
leader() { operate cluster status -o json | read_json 'it["consensus"]["leader"]'; }

# read_json EXPRESSION: of `it`, the JSON on standard input.
read_json() { python3 -c 'import json, sys; it = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }

# tell COMMAND…: to the client that streams; its answer must be no failure.
tell() {
  local said
  echo "$*" >&"${CLIENT[1]}"
  if ! IFS= read -r -t 60 said <&"${CLIENT[0]}"; then
    echo "the client has ended at: $*"
    return 1
  fi
  say "$* -> $said"
}

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
KEY=$(operate key create --name clients)
GATEWAYS=http://$(address a):8000,http://$(address b):8000
export KEY GATEWAYS
in_lan "$PYTHON" "$here/client.py" record "$work/texts.json"

coproc CLIENT { in_lan "$PYTHON" "$here/client.py" disturb "$work/texts.json" 2>"$work/client.err"; }
client=$CLIENT_PID
others+=("$client")
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
echo stop >&"${CLIENT[1]}"
cat <&"${CLIENT[0]}" || true
wait "$client" || { cat "$work/client.err"; exit 1; }

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
