#!/bin/bash
# All checks that need a GPU, in one call: test/gpu/run.sh [SECTION…]
#
# From the repository's root, or anywhere. BIN is the folder that build.sh filled, so that no Go is needed here; without it
# the binaries are built first. OUT is where run.log and table.txt go (./gpu-out), written as the checks go. NVRTC is found as
# trctl finds it, or named by TRCTL_NVRTC. Sections, in this order, the essential ones first; without arguments all of them, in
# about eight minutes on an H200:
#
#   selftest   driver, graphs, bandwidth                      torch      against transformers, fp32 and bf16 (python3)
#   kernels    every kernel against float64                   serve      dummy 0.6B and 32B behind the API
#   suite      the executor: suite, goldens, equalities       http       time of tokens over HTTP beside bare steps
#   shapes     the executor: real shapes and all the rest     upload     16 GB from files to the device
#   engine     steps launched ahead change no answer          bench      time of steps
#   eval       the trio's accuracy, against the CPU's         sanitizer  compute-sanitizer on two layers
#   fault      a wild store, a step that hangs                compile    registers and spills of every variant
#
# A check that is cut by its limit says in which test; what BUDGET (540 s for all) leaves no time for is listed as not run.
# Only the end of sanitizer and compile may be missing in a call that succeeds.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-$PWD/gpu-out}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TRCTL_TEST_DEVICE=gpu XDG_CACHE_HOME=$work/cache TMPDIR=$work/tmp
mkdir -p "$TMPDIR"
log=$out/run.log table=$out/table.txt last=$out/last.log # last: output of the present check
: >"$log"
: >"$table"
: >"$last"
failed=0 budget=${BUDGET:-540} optional=

if [ -z "${BIN:-}" ]; then
  "$root/test/gpu/build.sh" "$work/built" >>"$log" 2>&1 || { tail -n 20 "$log"; exit 1; }
  BIN=$work/built
fi
mkdir -p "$work/bin"
for f in "$BIN"/*; do
  case $f in
    *.gz) gunzip -c "$f" >"$work/bin/$(basename "$f" .gz)" ;;
    *) cp "$f" "$work/bin/" ;;
  esac
done
chmod +x "$work"/bin/*

# row NAME RESULT SECONDS NOTE
row() { printf '%-26s %-8s %6s s  %s\n' "$1" "$2" "$3" "$4" | tee -a "$table"; }

# within LIMIT: as many seconds, or what is left of the budget.
within() {
  local left=$((budget - SECONDS))
  echo $(($1 < left ? $1 : left))
}

# check NAME LIMIT COMMAND…: runs it in the present folder with a limit in seconds; its output is in $last.
check() {
  local name=$1 limit start=$SECONDS rc result
  limit=$(within "$2")
  shift 2
  echo "== $name: $*" >>"$log"
  : >"$last"
  if [ "$limit" -lt 5 ]; then
    row "$name" 'not run' 0 "the budget of $budget s is spent"
    [ -n "$optional" ] || failed=1
    return 1
  fi
  timeout -k 5 "$limit" "$@" >"$last" 2>&1
  rc=$?
  cat "$last" >>"$log"
  case $rc in
    0) result=ok ;;
    124 | 137) result=TIMEOUT ;;
    *) result=FAILED ;;
  esac
  grep -q '^panic: test timed out' "$last" && result=TIMEOUT
  note=$(summary)
  [ $result != FAILED ] || note="rc $rc; $note"
  row "$name" $result $((SECONDS - start)) "$note"
  slow
  [ $rc -eq 0 ] || {
    [ -n "$optional" ] || failed=1
    [ $result = TIMEOUT ] || grep -E 'FAIL|_test\.go:|panic|rror' "$last" | head -n 15 | cut -c1-300
  }
  return $rc
}

# gotest NAME LIMIT BINARY FLAG…: check for tests. They end themselves a little before the limit, so that the one cut is named.
gotest() {
  local name=$1 limit=$2 binary=$3
  check "$name" "$limit" "$work/bin/$binary" "${@:4}" -test.v -test.timeout "$(($(within "$limit") - 3))s"
}

# summary is a few words about the last output: the test that was cut, failed tests, or how many passed.
summary() {
  local bad passed
  passed=$(grep -cE '^ *--- PASS' "$last")
  if grep -q '^	running tests:' "$last"; then
    echo "cut in$(sed -n '/^	running tests:/,/^$/p' "$last" | sed 1d | tr '\n\t' '  ' | tr -s ' ' | cut -c1-160); $passed passed"
    return
  fi
  bad=$(grep -oE '^ *--- FAIL: [^ ]+' "$last" | sed 's/.*: //' | tr '\n' ' ' | cut -c1-160)
  [ -n "$bad" ] && { echo "$bad"; return; }
  [ "$passed" -gt 0 ] && { echo "$passed passed"; return; }
  tail -n 1 "$last" | cut -c1-120
}

# slow lists the tests of the last output that took five seconds or more.
slow() {
  local list
  list=$(sed -nE 's/^--- [A-Z]+: ([^ ]+) \(([0-9]+)\.[0-9]+s\)$/\1 \2/p' "$last" | awk '$2 >= 5 { printf "%s%s %d s", sep, $1, $2; sep = ", " }')
  [ -z "$list" ] || echo "    $list" >>"$table"
}

run_selftest() { cd "$root/cuda/selftest" && gotest selftest 60 selftest.test -test.run 'TestRun$'; }
run_kernels() { cd "$root/cuda/kernels" && gotest kernels 120 kernels.test -test.skip 'Spills$'; }

# The executor's tests, in two halves.
first='^Test(Suite|Golden|TeacherForced|Reproducible|GraphsAreEager|LargeStepsAreEager|Lookahead|Colocated)$'
run_suite() { cd "$root/worker/executor/cudaexec" && gotest suite 120 cudaexec.test -test.run "$first"; }
run_shapes() { cd "$root/worker/executor/cudaexec" && gotest shapes 150 cudaexec.test -test.skip "$first"; }

run_engine() { cd "$root/engine" && gotest engine 60 engine.test -test.run 'TestLookaheadOnGPU$'; }
run_compile() { cd "$root/cuda/kernels" && optional=1 gotest compile 120 kernels.test -test.run 'Spills$'; }

# fault NAME BINARY TEST: a process of its own, since a fault may spoil it. The lines say what recovered.
fault() {
  TRCTL_TEST_FAULT=1 gotest "fault $1" 60 "$2" -test.run "$3"
  grep -oE 'recovery: .*' "$last" | cut -c1-300 | sed 's/^/    /' >>"$table"
}

run_fault() {
  cd "$root/worker/executor/cudaexec" || return
  fault cuBLASLt cudaexec.test 'TestDeviceIsRebuilt$/^library$'
  fault 'own products' cudaexec.test 'TestDeviceIsRebuilt$/^own$'
  cd "$root/engine" && fault engine engine.test 'TestFaultOnGPU$'
  cd "$root"
  export work
  export -f serve_faults
  check 'fault serve' 120 bash -c serve_faults
  grep -E '^(answered|the process)' "$last" | sed 's/^/    /' >>"$table"
  export -f serve_hang
  check 'hang serve' 90 bash -c serve_hang
  grep -E '^(found|answered)' "$last" | sed 's/^/    /' >>"$table"
}

# serve_hang lets a kernel of two minutes take the whole GPU of a serving process. The step that waits for it is found to hang, and a
# new process, under the same id, gives the same answer.
serve_hang() {
  local url=http://127.0.0.1:18001 pid first now began
  export TRCTL_HANG_FILE=$work/spin TRCTL_URL=$url
  LD_PRELOAD=$work/bin/fault.so "$work/bin/trctl" serve --device cuda --listen 127.0.0.1:18001 >"$work/hang.log" 2>&1 &
  pid=$!
  trap 'cat "$work/hang.log"; kill $pid 2>/dev/null' EXIT
  until grep -q 'serves on' "$work/hang.log"; do kill -0 $pid || return 1; sleep 0.1; done
  # Steps of each size are known once 32 were seen.
  for _ in $(seq 40); do first=$("$work/bin/trctl" chat -p 'What is 17 * 3 + 25?') || return 1; done
  touch "$TRCTL_HANG_FILE"
  while [ -e "$TRCTL_HANG_FILE" ]; do sleep 0.02; done
  until grep -q 'spin is launched' "$work/hang.log"; do kill -0 $pid || return 1; sleep 0.02; done
  began=$(date +%s%3N)
  timeout 60 "$work/bin/trctl" chat -p 'What is 17 * 3 + 25?' >/dev/null 2>&1 &
  until grep -q 'a step does not end' "$work/hang.log"; do
    [ $(($(date +%s%3N) - began)) -lt 40000 ] && kill -0 $pid || return 1
    sleep 0.02
  done
  echo "found after $(($(date +%s%3N) - began)) ms: $(grep -o ' model=.*' "$work/hang.log" | head -n 1)"
  until [ "$(grep -c 'serves on' "$work/hang.log")" -gt 1 ] && now=$("$work/bin/trctl" chat -p 'What is 17 * 3 + 25?'); do
    [ $(($(date +%s%3N) - began)) -lt 60000 ] && kill -0 $pid || return 1
    sleep 0.1
  done
  echo "answered by process $pid after a step that hung, $(($(date +%s%3N) - began)) ms: $(tail -n 1 <<<"$now")"
  [ "$first" = "$now" ] || { echo "another answer: $now"; return 1; }
  kill -TERM $pid
  wait $pid
}

# serve_faults spoils the GPU of a serving process four times (test/gpu/fault.c). Three times a new process takes its place,
# under the same id, and gives the same answer; then the command ends with code 5.
serve_faults() {
  local url=http://127.0.0.1:18001 pid i began now first rc
  export TRCTL_FAULT_FILE=$work/spoil TRCTL_URL=$url
  LD_PRELOAD=$work/bin/fault.so "$work/bin/trctl" serve --device cuda --listen 127.0.0.1:18001 >"$work/faults.log" 2>&1 &
  pid=$!
  trap 'sort "$work/faults.chat" | uniq -c; cat "$work/faults.log"; kill $pid 2>/dev/null' EXIT
  for i in 0 1 2 3; do
    began=$(date +%s%3N)
    # A fault shows at the next step, so requests come all the time.
    until [ "$(grep -c 'serves on' "$work/faults.log")" -gt "$i" ] && now=$("$work/bin/trctl" chat -p 'What is 17 * 3 + 25?'); do
      [ $(($(date +%s%3N) - began)) -lt 30000 ] && kill -0 $pid || return 1
      "$work/bin/trctl" chat -p 'Hello' >/dev/null || sleep 0.1
    done 2>>"$work/faults.chat"
    echo "answered by process $pid after $i faults, $(($(date +%s%3N) - began)) ms: $(tail -n 1 <<<"$now")"
    [ "${first=$now}" = "$now" ] || { echo "another answer: $now"; return 1; }
    touch "$TRCTL_FAULT_FILE"
    while [ -e "$TRCTL_FAULT_FILE" ]; do sleep 0.02; done
  done
  while kill -0 $pid; do "$work/bin/trctl" chat -p 'Hello' || sleep 0.1; done >/dev/null 2>>"$work/faults.chat"
  wait $pid
  rc=$?
  echo "the process ended with code $rc"
  [ $rc -eq 5 ]
}

run_torch() {
  mkdir -p "$work/ref"
  cd "$root" && check 'torch reference' 90 python3 -B cuda/torchref/reference.py "$work/ref" || return
  cd worker/executor/cudaexec &&
    TRCTL_TORCH_REF=$work/ref gotest 'torch comparison' 60 cudaexec.test -test.run 'TestTransformers$'
  grep -oE '[a-z0-9.-]+ after .*ratio.*' "$last" >>"$table"
  rm -rf "$work/ref"
}

# evaluate NAME FLAG…: all 500 problems on the GPU, with the bounds given.
evaluate() {
  local name=$1
  shift
  check "eval $name" 60 "$work/bin/trctl" eval --device cuda -n 0 --concurrency 64 "$@"
  grep -E 'accuracy|large share|tokens/s|speed' "$last" | grep -v '/500 problems' | tr -s ' ' | tr '\n' ';' | sed 's/^/    /; s/$/\n/' >>"$table"
}

# The CPU measures .412, .990, .998, and .990 with 11.6 % large tokens (docs/bench.md).
run_eval() {
  cd "$root"
  evaluate tiny-s --models tiny-s --min-accuracy 0.392 --max-accuracy 0.432
  evaluate tiny-m --models tiny-m --min-accuracy 0.97
  evaluate tiny-l --models tiny-l --min-accuracy 0.978
  evaluate r-stitch --models tiny-s,tiny-l --policy r-stitch --min-accuracy 0.97 --max-large-share 0.136
}

# serve starts a pair of dummy models, puts load on it, and stops it.
serve() {
  local url=127.0.0.1:18000 pid rc=1
  "$work/bin/trctl" serve --device cuda --models qwen3-0.6b,qwen3-32b --load dummy:7 --policy random --threshold 0.2 \
    --listen $url >"$work/serve.log" 2>&1 &
  pid=$!
  for _ in $(seq 1 300); do
    grep -q 'serves on' "$work/serve.log" && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.2
  done
  "$work/bin/trctl" bench --url "http://$url" --endpoint completions --model default --prompt-ids --input-tokens 100 \
    --vocab 151000 --ignore-eos --concurrency 8 --requests 32 --max-tokens 64 && rc=0
  kill -TERM $pid
  wait $pid || rc=1
  cat "$work/serve.log"
  return $rc
}

run_serve() {
  cd "$root"
  export work
  export -f serve
  check serve 90 bash -c serve
  grep -vE '^(time|Ctrl|Try)|curl' "$last" | cut -c1-140 | head -n 24 | sed 's/^/    /' >>"$table"
}

# http serves the dummy 0.6B alone and compares what clients see with bare steps, for one and for eight requests in flight. The
# table says what HTTP, gateway, scheduler and hand-over of tokens add to a step, and to a prompt's first pass.
http() {
  local url=127.0.0.1:18003 pid rc=0 n steps
  steps=("$work/bin/trctl" bench-step --model qwen3-0.6b --load dummy:7 --device cuda --b 1,8 --ctx 1100 --rounds 100 --no-phases -o json)
  "${steps[@]}" --chunk 512 --prefill 1000 >"$work/steps-plain.json" && "${steps[@]}" --ahead >"$work/steps-ahead.json" || return
  "$work/bin/trctl" serve --device cuda --models qwen3-0.6b --load dummy:7 --listen $url >"$work/http.log" 2>&1 &
  pid=$!
  for _ in $(seq 1 300); do
    grep -q 'serves on' "$work/http.log" && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.2
  done
  for n in 1 8; do
    "$work/bin/trctl" bench --url "http://$url" --endpoint completions --model qwen3-0.6b --prompt-ids --input-tokens 1000 --vocab 151000 \
      --ignore-eos --max-tokens 200 --temperature 0 --concurrency $n --requests $((8 * n)) -o json >"$work/http-$n.json" || rc=1
  done
  kill -TERM $pid
  wait $pid || rc=1
  cat "$work/http.log"
  [ $rc -eq 0 ] && python3 -B "$root/test/gpu/report.py" http "$work" || return 1
}

run_http() {
  cd "$root"
  export work root
  export -f http
  check http 90 bash -c http
  grep -A 3 '^ *N *step' "$last" | sed 's/^/    /' >>"$table"
}

# sanitize TOOL TEST LIMIT FLAG…: a refused device is no failure.
sanitize() {
  check "sanitizer $1 $2" "$3" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20 "${@:4}" \
    "$work/bin/cudaexec.test" -test.run "$2" -test.v
  if grep -qE 'Device not supported|not supported on this' "$last"; then
    sed -i '$d' "$table"
    row "sanitizer $1" skipped 0 'the tool does not support this machine'
    return 1
  fi
  grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$last" | sed 's/^/    /' >>"$table"
}

run_sanitizer() {
  command -v compute-sanitizer >/dev/null || { row sanitizer skipped 0 'there is no compute-sanitizer'; return; }
  cd "$root/worker/executor/cudaexec" || return
  # memcheck counts failed calls of the driver too, and one must fail: the question for a kernel's second parameter, which
  # tells that there is none. Our own code checks the code of every call.
  sanitize memcheck 'TestTwoLayers' 60 --report-api-errors no || return
  sanitize initcheck 'TestTwoLayers/own' 60
  # Each on its own: racecheck is slow, and a shape that takes too long should not hide the others. "wide" does.
  local shape optional=
  for shape in own/odd gemv/odd own/tiny-s gemv/tiny-s own/tiny-m own/tiny-l; do
    sanitize racecheck "TestTwoLayers/$shape\$" 60
    [ $shape = gemv/odd ] && optional=1 # the others as far as time goes
  done
}

run_upload() {
  cd "$root/worker/executor/cudaexec" &&
    check upload 100 "$work/bin/cudaexec.test" -test.run '^$' -test.bench 'Upload$' -test.benchtime 1x -test.v
  grep -E 'GB/s|written' "$last" | sed 's/^/    /' >>"$table"
}

run_bench() {
  cd "$root/worker/executor/cudaexec" &&
    check bench 150 "$work/bin/cudaexec.test" -test.run '^$' -test.bench 'Step$/^qwen3-(0.6b|8b|32b)$' -test.benchtime 20x
  grep -E '^Benchmark' "$last" | sed 's/^BenchmarkStep\//    /' >>"$table"
}

sections=("$@")
[ ${#sections[@]} -gt 0 ] || sections=(selftest kernels suite shapes engine eval fault torch serve http upload bench sanitizer compile)
for section in "${sections[@]}"; do
  if ! declare -F "run_$section" >/dev/null; then
    echo "there is no section $section" >&2
    exit 2
  fi
  "run_$section"
done
rm -f "$last"
echo
cat "$table"
exit $failed
