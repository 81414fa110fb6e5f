#!/usr/bin/env bash
# A step that never ends, in a real worker: a thread of the worker is held in the middle of a step (hold.py) while it writes an
# answer. The other worker must go on with the same text, the log say what hung, and a new process, under the same id, take the
# worker's place. Then a worker is stopped for longer than a step may take, and goes on: nothing may be found to hang.
#
#   test/cluster/hang.sh
#
# Takes up to four minutes: steps have 30 s here, and a hundred times what slow ones took, as those do at which hold.py tries. Needs Linux, Python 3, 5 GiB of memory, the loopback ports 7300 to 7331, and to be
# root (ptrace). TRCTL is the binary (built if not given), KEEP=1 leaves the logs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
pids=()
end() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
  [ -n "${KEEP:-}" ] && echo "logs are in $work" || rm -rf "$work"
}
trap end EXIT
fail() { echo "FAILED: $*"; tail -n 5 "$work"/*.log; exit 1; }
trctl=${TRCTL:-$work/trctl}
[ -n "${TRCTL:-}" ] || go build -o "$trctl" ./cmd/trctl
export TRCTL_DATA_HOME=$work TRCTL_ADMIN_SOCKET=$work/admin.sock TRCTL_LOG_LEVEL=info

# start NAME GOSSIP COMMAND…: a node, its log, its process id.
start() {
  local name=$1 gossip=$2
  shift 2
  "$trctl" "$@" --gossip "127.0.0.1:$gossip" --data "$work/$name" >"$work/$name.log" 2>&1 &
  pids+=($!)
  echo $! >"$work/$name.pid"
}
# until_true SECONDS COMMAND…
until_true() {
  local i
  for ((i = 0; i < $1 * 5; i++)); do
    "${@:2}" >/dev/null 2>&1 && return
    sleep 0.2
  done
  fail "not within $1 s: ${*:2}"
}
start control 7301 cluster init --listen 127.0.0.1:7300 --advertise 127.0.0.1:7300 --quiet
until_true 20 "$trctl" cluster status
for role in worker gateway; do "$trctl" cluster token create --role $role --uses 2 >"$work/$role.token" 2>/dev/null; done
for i in 1 2; do
  # A collection of garbage would wait for the thread that is held, and with it all others.
  GOGC=off start w$i 731$i worker join --name w$i --join 127.0.0.1:7300 --token-file "$work/worker.token" --listen 127.0.0.1:732$i \
    --advertise 127.0.0.1:732$i --model qwen3-0.6b --load dummy:7 --device cpu --workers 1 --kv-tokens 4096 --hang-after 30s
done
start gateway 7302 gateway join --join 127.0.0.1:7300 --token-file "$work/gateway.token" --listen 127.0.0.1:7330 --advertise 127.0.0.1:7330
printf 'deployments:\n  - name: q\n    models: [qwen3-0.6b]\n    policy: {name: single}\n' >"$work/q.yaml"
for i in 1 2; do until_true 60 grep 'replica serves' "$work/w$i.log"; done
"$trctl" apply -f "$work/q.yaml" >/dev/null
key=$("$trctl" key create --name test 2>/dev/null)

# ask FILE: one answer, as a stream; text FILE: what it says.
ask() {
  curl -sSN http://127.0.0.1:7330/v1/completions -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d '{"model":"q","stream":true,"prompt":[1,2,3],"max_tokens":400,"temperature":0.7,"seed":5}' >"$1" 2>&1
}
text() {
  python3 -c 'import json, sys
lines = [l[6:] for l in sys.stdin if l.startswith("data: {")]
print("".join(c["text"] for l in lines for c in json.loads(l)["choices"]))' <"$1"
}
answers() { ask "$work/try" && text "$work/try" >"$work/want" && [ "$(wc -w <"$work/want")" -eq 400 ]; }
until_true 120 answers

# busy: the worker that computes.
busy() {
  local i used=() most=0
  for i in 1 2; do used[i]=$(cut -d' ' -f14 "/proc/$(<"$work/w$i.pid")/stat"); done
  sleep 1
  for i in 1 2; do used[i]=$(($(cut -d' ' -f14 "/proc/$(<"$work/w$i.pid")/stat") - used[i])); done
  [ "${used[1]}" -gt "${used[2]}" ] && echo w1 || echo w2
}

: >"$work/answer"
ask "$work/answer" &
asking=$!
sleep 3
worker=$(busy)
pid=$(<"$work/$worker.pid")
python3 test/cluster/hold.py "$pid" "$work/answer" >"$work/hold.log" 2>&1 &
until_true 60 grep held "$work/hold.log"
began=$SECONDS
until_true 300 grep 'a step does not end' "$work/$worker.log"
echo "$worker: found after $((SECONDS - began)) s: $(sed -n 's/.*a step does not end.* model=/model=/p' "$work/$worker.log")"
until_true 60 eval "[ \"\$(grep -c 'replica serves' '$work/$worker.log')\" -eq 2 ]"
kill -0 "$pid" || fail "the worker has another process id"
echo "$worker: serves again $((SECONDS - began)) s after the hold"
wait $asking || fail "the request failed"
[ "$(text "$work/answer")" = "$(<"$work/want")" ] || fail "another text"
echo "the answer went on elsewhere, with the same text"

: >"$work/answer"
ask "$work/answer" &
asking=$!
sleep 3
worker=$(busy)
before=$(cat "$work"/w?.log | grep -c 'a step does not end')
kill -STOP "$(<"$work/$worker.pid")"
sleep 35
kill -CONT "$(<"$work/$worker.pid")"
wait $asking || fail "the request failed"
sleep 3
[ "$(cat "$work"/w?.log | grep -c 'a step does not end')" -eq "$before" ] || fail "a pause was taken for a hang"
[ "$(text "$work/answer")" = "$(<"$work/want")" ] || fail "another text after a pause"
echo "$worker: a pause of 35 s is no hang"
