#!/bin/bash
# Routed efficiency on a machine of two GPUs, in one call of about six minutes: test/gpu/routed.sh
#
# Qwen3-0.6B with dummy weights on GPU 0, Qwen3-32B on GPU 1, policy random: a small token is dropped with a probability and
# the large model writes one instead. Tokens a second of trctl bench over HTTP stand beside floors; the table comes last, all
# results are in OUT (./gpu-out). BIN is the folder that build.sh filled.
#
# Each of the N requests in flight has a prompt of its own of PROMPT ids, and TOKENS tokens of answer, so that the context is
# 2k on average. All prompts are computed before the measurement, by requests that are not counted, and come from the prefix
# cache of both models after that (column "cached"): 30 pages of 64 ids, so that one id is computed again.
# Batching thresholds are those served by default: they follow the load.
#
# Each setting runs WAVES answers for each request in flight: as the last ones end fewer are in flight than N, so that of 6 waves a
# tenth is lost.
#
# Other settings: THRESHOLDS INFLIGHT MODELS LOAD DEVICE GPUS PROMPT TOKENS VOCAB ROUNDS.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-$PWD/gpu-out}
mkdir -p "$out"
work=$(mktemp -d)
serving=
trap '[ -z "$serving" ] || kill "$serving" 2>/dev/null; rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache TMPDIR=$work/tmp
mkdir -p "$TMPDIR"
trctl=$work/trctl
if [ -f "$BIN/trctl.gz" ]; then gunzip -c "$BIN/trctl.gz" >"$trctl"; else cp "$BIN/trctl" "$trctl"; fi
chmod +x "$trctl"
report() { python3 -B "$root/test/gpu/report.py" "$@"; }

models=${MODELS:-qwen3-0.6b,qwen3-32b} device=${DEVICE:-cuda} prompt=${PROMPT:-1921} tokens=${TOKENS:-150} vocab=${VOCAB:-151000}
inflight=${INFLIGHT:-1 4 8 16} thresholds=${THRESHOLDS:-.05 .1 .35} rounds=${ROUNDS:-9} waves=${WAVES:-16}
load=${LOAD---load dummy:7} gpus=${GPUS---gpus 0,1}
url=http://127.0.0.1:18002
log=$out/routed.log
: >"$log"
rm -f "$out"/{point,before,after,thresholds}-*.json

# The bare steps of both models, side by side on their GPUs. The large model reads about one over the probability for a row.
rows=$(tr ' ' , <<<"$inflight")
lengths=$(for p in $thresholds; do awk -v p="$p" 'BEGIN { printf "%d\n", 1 / p + .5 }'; done | sort -nu | paste -sd,)
context=$((prompt + tokens / 2))
place() { [ -z "$gpus" ] || echo "--gpu $1"; }
# shellcheck disable=SC2046,SC2086 # flags are words
{
  "$trctl" bench-step --model "${models%,*}" $load --device "$device" $(place 0) --b "$rows" --ctx $context --rounds "$rounds" --no-phases \
    -o json >"$out/steps-small.json" 2>>"$log" &
  first=$!
  "$trctl" bench-step --model "${models#*,}" $load --device "$device" $(place 1) --b "$rows" --extend "$lengths" --ctx $context \
    --rounds "$rounds" --no-phases -o json >"$out/steps-large.json" 2>>"$log" || { tail -n 5 "$log"; exit 1; }
  wait $first || { tail -n 5 "$log"; exit 1; }
}
echo "bare steps: $SECONDS s"

# start P serves with that probability.
start() {
  # shellcheck disable=SC2086
  "$trctl" serve --device "$device" $gpus --models "$models" $load --policy random --threshold "$1" --name pair --listen "${url#http://}" \
    --admin-socket "$work/admin.sock" >"$work/serve.log" 2>&1 &
  serving=$!
  for _ in $(seq 1 600); do
    grep -q 'serves on' "$work/serve.log" && return
    kill -0 $serving 2>/dev/null || break
    sleep 0.1
  done
  tail -n 5 "$work/serve.log"
  return 1
}

stop() {
  kill -TERM "$serving"
  wait "$serving" || echo "the server ended with code $?"
  serving=
  cat "$work/serve.log" >>"$log"
}

# load N REQUESTS SEED: that many answers, N at a time.
load() {
  "$trctl" bench --url $url --model pair --endpoint completions --file "$work/prompts-$1" --ignore-eos --max-tokens "$tokens" --temperature 0 \
    --concurrency "$1" --requests "$2" --warmup 0 --seed "$3" -o json 2>>"$log"
}

failed=0
for p in $thresholds; do
  start "$p" || { failed=1; break; }
  for n in $inflight; do
    name=$p-$n
    report prompts "$n" "$prompt" "$vocab" >"$work/prompts-$n"
    load "$n" $((3 * n)) 1000 >"$work/warm.json" && report metrics $url >"$out/before-$name.json" &&
      load "$n" $((waves * n)) 1 >"$out/point-$name.json" && report metrics $url >"$out/after-$name.json" &&
      "$trctl" get thresholds --admin-socket "$work/admin.sock" -o json >"$out/thresholds-$name.json" || { failed=1; tail -n 5 "$log"; rm -f "$out/point-$name.json"; }
  done
  stop
  echo "probability $p: $SECONDS s"
done
report routed "$out" "$trctl" | tee "$out/routed.txt"
exit $failed
