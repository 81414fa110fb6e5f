#!/usr/bin/env bash
# Rolling upgrades of README's cluster, on machines as in run.sh, while answers are being
# streamed through both gateways: every node is drained and started again with a build
# that speaks newer versions of all protocols (the build tag nextprotocol), in one order;
# then all go back; then forward again in the other order. No request may fail, and every
# text must be that of an undisturbed run.
#
# While builds are mixed, commands of both must be taken, and one that only the newer
# build knows must not. Once it was taken, the older build must refuse to start, until a
# backup from before that is restored.
#
#   sudo test/cluster/upgrade.sh
#
# TRCTL and TRCTL_NEXT are the two binaries (built if not given); the rest is as in run.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$here/machines.sh"
source "$here/readme.sh"

prepare
[ -n "${TRCTL_NEXT:-}" ] || { TRCTL_NEXT=$work/trctl-next; (cd "$root" && go build -tags nextprotocol -o "$TRCTL_NEXT" ./cmd/trctl); }
mkdir "$work/next"
ln -s "$(realpath "$TRCTL_NEXT")" "$work/next/trctl"
next=$work/next
version=$("$next/trctl" version -o json | read_json 'it["protocols"]["cluster"]["newest"]')
steps=0

# nodes_of WORDS: the nodes whose command has them.
nodes_of() {
  local node
  for node in "${nodes[@]}"; do
    [[ ${commands[$node]} != *"$1"* ]] || echo "$node"
  done
}

# roll BUILD NODE…: one after another is drained and started again with the build, whose
# folder is BUILD (empty for the first one).
roll() {
  local build=$1 node
  shift
  for node in "$@"; do
    tell term "$node.$((++steps))" "${pids[$node]}"
    ended "$node" 0
    builds[$node]=$build
    restart "$node"
    until_ready
  done
}

# speak COUNT: so many nodes announce the newer version.
speak() { [ "$(operate get nodes -o json | read_json "sum(n['protocol'] == $version for n in it)")" = "$1" ]; }

# annotate MACHINE: the command that only the newer build knows, to the control node there.
annotate() {
  on "$1" curl --silent --show-error --max-time 5 --unix-socket "$work/$1/run/trctl.sock" http://trctl/v1/cluster/propose \
    --data "{\"v\":$version,\"kind\":\"annotate\",\"time\":\"2026-01-01T00:00:00Z\",\"body\":{\"note\":\"upgraded\"}}"
}

# answered MACHINE: annotate has been decided on, and work/said has the answer.
answered() { annotate "$1" >"$work/said" && ! grep -q '"no_quorum"' "$work/said"; }

# refuses BACKUP: the older build does not restore what it cannot read, and says why.
refuses() {
  ! operate cluster restore "$1" >"$work/said" 2>&1 || { echo "the older build has restored $1"; exit 1; }
  grep "version $version has written it" "$work/said"
}

# quietly COMMAND…: without what it prints, which are keys and tokens.
quietly() { "$@" >/dev/null; }

# mixed COUNT: so many nodes are upgraded, and not all control nodes. Commands of both
# builds are taken; what only the newer one knows is refused, everywhere and by name.
mixed() {
  local machine said
  until_true "$1 nodes speak version $version" speak "$1"
  say "mixed: $1 nodes speak version $version"
  on a trctl get nodes -o wide
  # Elections on a busy machine are no fault of the builds: who is told so asks again.
  until_true "the older build makes a key" quietly on a trctl key create --name "old-$steps"
  until_true "the newer build makes a key" quietly on b "$next/trctl" key create --name "next-$steps"
  until_true "the older build makes a token" quietly on c trctl cluster token create --role admin --ttl 1m
  for machine in "${machines[@]}"; do
    until_true "annotate is answered" answered "$machine"
    said=$(<"$work/said")
    [[ $said == *'"code":"version"'*"has version $version; "*"control node"*" speaks "*"; upgrade those that are older"* ]] || { echo "a command that not all control nodes can read: $said"; return 1; }
  done
  say "refused: $said"
}

# went_too_far NODE: a control node that is put back to the older build ends at once and
# says why.
went_too_far() {
  local node=$1
  tell term "$node.$((++steps))" "${pids[$node]}"
  ended "$node" 0
  builds[$node]=
  launch "$node"
  ended "$node" 1
  grep -E "version $version" "$work/log.$node" | tail -n 1 | cut -c 1-400 | tee "$work/said"
  grep -q "use a build that speaks" "$work/said"
  builds[$node]=$next
  restart "$node"
  until_ready
}

say "three machines, net $net; $("$work/bin/trctl" version | tail -n 1); then $("$next/trctl" version | tail -n 1)"
follow_readme
say "ready after $SECONDS s"
start_client
tell finish 6
mapfile -t control < <(nodes_of "trctl cluster ")
mapfile -t workers < <(nodes_of "trctl worker ")
mapfile -t gateways < <(nodes_of "trctl gateway ")

roll "$next" "${control[@]:0:1}"
mixed 1
roll "$next" "${control[@]:1}"
roll "$next" "${workers[@]}"
roll "$next" "${gateways[@]}"
until_true "all nodes are upgraded" speak "${#nodes[@]}"
say "upgraded control nodes, workers, gateways after $SECONDS s"

roll "" "${control[@]}" "${workers[@]}" "${gateways[@]}"
until_true "all nodes are back" speak 0
say "all are back after $SECONDS s"

roll "$next" "${gateways[@]}"
roll "$next" "${workers[@]}"
mixed $((${#gateways[@]} + ${#workers[@]}))
roll "$next" "${control[@]}"
until_true "all nodes are upgraded" speak "${#nodes[@]}"
say "upgraded gateways, workers, control nodes after $SECONDS s"

# Now, and not before, there is something that the older build cannot read.
until_true "a backup is made" quietly operate cluster backup "$work/before"
until_true "annotate is answered" answered b
said=$(<"$work/said")
[[ $said == *'"index":'* ]] || { echo "a command that all control nodes can read: $said"; exit 1; }
until_true "another backup is made" quietly on a "$next/trctl" cluster backup "$work/backup"
grep -q '"note":"upgraded"' "$work/backup"
until_true "the older build refuses that backup" refuses "$work/backup"
went_too_far "${control[2]}"

# Without what it cannot read it can be taken back again.
until_true "the backup is restored" quietly on a "$next/trctl" cluster restore "$work/before"
until_ready
roll "" "${control[2]}"
until_true "one node is back" speak $((${#nodes[@]} - 1))
tell finish 12
stop_client
say "ok in $SECONDS s"
