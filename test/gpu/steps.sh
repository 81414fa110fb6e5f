#!/bin/bash
# Step times and products in many variants, in one call of about five minutes on an H200: test/gpu/steps.sh [SECTION…]
#
# BIN is the folder that build.sh filled, OUT where steps.log goes (./gpu-out). Sections; without arguments all:
#
#   correct   graphs, lookahead, suite and kernels    products  every matrix product by size, in graphs
#   small     steps of 0.6B                           medium    steps of 8B and prefills
#   large     steps of 32B                               cost      reproducible steps beside the others, as a table
#   gap       the host's time between steps           timeline  where the time of a step goes on the device
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-$PWD/gpu-out}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TRCTL_TEST_DEVICE=gpu XDG_CACHE_HOME=$work/cache TMPDIR=$work/tmp
mkdir -p "$TMPDIR" "$work/bin"
log=$out/steps.log
: >"$log"
for f in "$BIN"/*; do
  case $f in
    *.gz) gunzip -c "$f" >"$work/bin/$(basename "$f" .gz)" ;;
    *) cp "$f" "$work/bin/" ;;
  esac
done
chmod +x "$work"/bin/*

# try LIMIT COMMAND…: runs it with a limit in seconds and says how it ended.
try() {
  local limit=$1 start=$SECONDS
  shift
  echo "== $*" >>"$log"
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1
  echo "$? after $((SECONDS - start)) s: $(basename "$1") ${*:2}" | tee -a "$log" | cut -c1-200
}

# steps MODEL ARGS…: one table.
steps() {
  local model=$1
  shift
  try 60 "$work/bin/trctl" bench-step --model "$model" --load dummy:1 --device cuda --cache "$work/cubins" --ctx 1024 "$@"
}

run_correct() {
  try 70 "$work/bin/cudaexec.test" -test.run 'Graphs|LargeSteps|Lookahead|Continue|Suite|LibraryAgrees' -test.v
  try 60 "$work/bin/kernels.test" -test.run 'Matmul|Gate|Attention|Logit|Sampl|Prep|Publish'
}

run_products() {
  try 90 "$work/bin/kernels.test" -test.run '^$' -test.bench 'Matmul|Attention' -test.benchtime 9x
}

run_small() {
  steps qwen3-0.6b --b 1,2,4,8,16,32,64 --extend 8 --prefill 1000,4096
  for variant in --no-overlap --eager '--products library' '--products own' --reproducible --ahead '--temperature 0.6 --top-p 0.95' '--temperature 0.6 --top-p 0.95 --top-k 20'; do
    # shellcheck disable=SC2086 # a variant is one or more words
    steps qwen3-0.6b --b 1,2,8,16,64 --no-phases $variant
  done
}

run_medium() {
  steps qwen3-8b --b 1,2,4,8,16,32,64 --prefill 1000,4096
  steps qwen3-8b --b 1,8,16,64 --no-phases --products library
  steps qwen3-8b --b 1,8,16,64 --no-phases --no-overlap
  steps qwen3-8b --b 1,2,4,8,16,64 --no-phases --reproducible --prefill 4096
}

run_large() {
  steps qwen3-32b --b 1,2,4,8,16,40,64 --extend 5 --prefill 1000
  steps qwen3-32b --b 1,4,8,40 --no-phases --products library
  steps qwen3-32b --b 1,4,8,16,40 --no-phases --reproducible
}

# cost says by how much reproducible steps are slower; less than 15 % is wanted. The tables are in OUT too.
run_cost() {
  local model args
  while read -r model args; do
    for mode in '' --reproducible; do
      # shellcheck disable=SC2086 # words
      "$work/bin/trctl" bench-step --model "$model" --load dummy:1 --device cuda --cache "$work/cubins" --ctx 1024 --no-phases $args $mode \
        -o json >"$out/cost-$model${mode:+-same}.json" 2>>"$log"
    done
    python3 -B "$root/test/gpu/report.py" cost "$out/cost-$model.json" "$out/cost-$model-same.json" | tee -a "$log"
  done <<'END'
qwen3-0.6b --b 1,2,4,8,16,32,64 --extend 4 --prefill 1000,4096
qwen3-8b --b 1,2,4,8,16,64 --prefill 4096
qwen3-32b --b 1,4,8,16,32 --extend 5 --prefill 1000
END
}

# gap prints in the last two columns what the device waits for the host between steps: median and 99th percentile of 400 steps
# in microseconds. 20 are allowed. Launched ahead the device does not wait at all.
run_gap() {
  for mode in '' --ahead '--ahead --temperature 0.6 --top-p 0.95'; do
    # shellcheck disable=SC2086
    steps qwen3-0.6b --b 1,8,64 --rounds 400 --no-phases $mode
  done
  steps qwen3-32b --b 1,8 --extend 5 --rounds 100 --no-phases
}

# timeline prints where the time of a step goes, by operation and between operations, and leaves traces for ui.perfetto.dev in OUT. The
# steps without stamps come first, to see what those cost; one trace has the blocks of each multiprocessor.
run_timeline() {
  local model args
  try 90 "$work/bin/cudaexec.test" -test.run 'TestTimeline$' -test.v
  while read -r model args; do
    # shellcheck disable=SC2086 # words
    steps "$model" --no-phases ${args% --timeline-blocks}
    # shellcheck disable=SC2086
    timeout -k 5 120 "$work/bin/trctl" bench-step --model "$model" --load dummy:1 --device cuda --cache "$work/cubins" --ctx 1024 --no-phases $args \
      --timeline "$out/timeline-$model.json" >"$out/timeline-$model.txt" 2>>"$log"
    cat "$out/timeline-$model.txt" >>"$log"
    grep -A 40 '^timeline of' "$out/timeline-$model.txt"
  done <<'END'
qwen3-8b --b 8 --timeline-blocks
qwen3-32b --b 1,8 --extend 5
END
}

sections=("$@")
[ ${#sections[@]} -gt 0 ] || sections=(correct products small medium large cost gap timeline)
for section in "${sections[@]}"; do "run_$section"; done
grep -E '^(step|decode|extend|prefill|qwen|  +[a-z]+ )| on NVIDIA' "$log" | tail -n 150
