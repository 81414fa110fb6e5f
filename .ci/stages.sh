# Sourced by run: the stages, one function each.

STATICCHECK=honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK=golang.org/x/vuln/cmd/govulncheck@v1.9.0
# The packages that a build of the next protocol (api/protocol) differs in, or whose tests depend on it.
VERSIONED=(./api/protocol ./api/cluster ./api/handoff ./api/generate ./control ./control/state ./worker/peer)
NVRTCS=(nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-nvrtc==13.5.37)

tools() {
  need go golang
  need gcc gcc
  need g++ g++
  need curl curl
  need python3 python3
  need node nodejs
  need npm npm
  python3 -c 'import ensurepip' 2>/dev/null || need python3-venv python3-venv
  go version
  python3 --version
  node --version
}

# silent COMMAND…: fails if the command prints more than download lines.
silent() {
  "$@" 2>&1 | tee "$work/said"
  ! grep -v '^go: \(downloading\|finding\|extracting\) ' "$work/said" || { echo "not silent: $*"; return 1; }
}

# A build from an empty cache prints nothing but download lines, in every way that
# the documents show.
build() {
  local cold=$work/cold
  # The cache of a fresh machine is empty, so nothing needs to be built twice.
  [ -n "$(ls "$(go env GOCACHE)" 2>/dev/null)" ] || cold=$(go env GOCACHE)
  GOCACHE=$cold silent go build -o "$work/trctl" ./cmd/trctl
  GOCACHE=$cold with_nvml silent go build -tags nvml -o "$work/trctl-nvml" ./cmd/trctl
  rm -rf "$work/cold"
  CGO_ENABLED=0 silent go build -o "$work/trctl-nocgo" ./cmd/trctl
  silent go build -tags nextprotocol -o "$work/trctl-next" ./cmd/trctl
  local binary
  for binary in trctl trctl-nvml trctl-nocgo; do
    "$work/$binary" version
    "$work/$binary" doctor --cache "$work/no-cubins"
  done
  go mod verify
}

# with_nvml COMMAND…: in the environment for builds with NVML.
with_nvml() { CGO_CFLAGS="-g -O2 -Wno-deprecated-declarations" "$@"; }

format() {
  local unformatted script
  unformatted=$(git ls-files '*.go' | xargs gofmt -l)
  [ -z "$unformatted" ] || { echo "not formatted:"; echo "$unformatted"; return 1; }
  for script in .ci/run .ci/full .ci/stage.sh .ci/stages.sh examples/curl.sh test/cluster/*.sh; do bash -n "$script"; done
}

vet() {
  go vet ./...
  CGO_ENABLED=0 go vet ./cuda/... ./internal/doctor # the rest has no cgo
  with_nvml go vet -tags nvml ./cuda/inventory ./internal/doctor
  go vet -tags nextprotocol "${VERSIONED[@]}"
  (cd test/sdk/go && go vet ./...)
}

static_check() {
  go run "$STATICCHECK" ./...
  with_nvml go run "$STATICCHECK" -tags nvml ./cuda/inventory ./internal/doctor
  go run "$STATICCHECK" -tags nextprotocol "${VERSIONED[@]}"
}

# The database of govulncheck may be out of reach; everything else is a finding.
vulnerabilities() {
  if go run "$GOVULNCHECK" ./... >"$work/vuln" 2>&1; then
    tail -n 3 "$work/vuln"
    return
  fi
  if grep -q 'fetching vulnerabilities' "$work/vuln"; then
    echo "skipped: the vulnerability database cannot be reached"
    return
  fi
  cat "$work/vuln"
  return 1
}

# long_tests PRINT: the tests that have a long form, as PRINT says: their names or their packages. A test has one if it, or
# a function that it calls, asks testing.Short() or for the race detector. Stage kernels has those of cuda/kernels.
long_tests() {
  local files
  files=$(git ls-files '*_test.go' ':!cuda/kernels')
  # shellcheck disable=SC2086
  awk -v what="$1" '
    FNR == 1 { folder = FILENAME; sub(/\/[^\/]*$/, "", folder); name = "" }
    /^func / { name = $2; sub(/[^A-Za-z0-9_].*/, "", name); next }
    name == "" { next }
    { asks = /testing\.Short\(\)|(if|\|\|) !?(raced|raceEnabled)/ }
    pass == 1 && asks && name !~ /^Test/ { askers[folder] = askers[folder] "|" name }
    pass == 2 && name ~ /^Test/ && (asks || folder in askers && $0 ~ "[^A-Za-z0-9_.](" substr(askers[folder], 2) ")\\(") {
      print what == "names" ? name : "./" folder
    }' pass=1 $files pass=2 $files | sort -u
}

# EMULATED is the package whose long forms compute for minutes and wait for nothing.
EMULATED=./worker/executor/cudaexec

# long_forms: without the race detector, at full length, what the race run has in a short form; and nothing else twice.
long_forms() {
  local packages scripts
  packages=$(long_tests packages | grep -vxF -e ./control -e "$EMULATED") # the last line has all of control
  scripts=$(git grep -l -F '[!short]' -- 'cmd/trctl/testdata/script/*.txtar' | xargs -n 1 basename -s .txtar | paste -sd '|')
  # shellcheck disable=SC2086
  go test -vet=off -shuffle=on -run "^($1)\$" $packages
  go test -vet=off -shuffle=on -run "^TestScripts\$/^($scripts)\$" ./cmd/trctl
  with_nvml go test -vet=off -tags nvml -shuffle=on ./cuda/inventory ./internal/doctor
  go test -vet=off -tags nextprotocol -shuffle=on "${VERSIONED[@]}"
}

# README's command with everything under the race detector, the long ones in their short form; beside it, as many tests
# wait more than they compute, the long forms: emulated kernels, the matrix of batches, cut streams. The emulated kernels
# take the processors only as far as the others leave them, for clusters have deadlines to keep.
# Stage vet has been there, and the packages that take longest begin first. No process waits a second at its end for races
# of goroutines that are left, as it does by itself (and in full): leaktest finds those.
tests() {
  # The emulator needs a C++ compiler and this architecture; it must not be skipped.
  [ "$(uname -m)" != x86_64 ] || export TRCTL_TEST_DEVICE=simt
  local names process failed=0
  names=$(long_tests names | paste -sd '|')
  nice -n 10 go test -vet=off -shuffle=on -run "^($names)\$" "$EMULATED" >"$work/emulated" 2>&1 &
  started+=("$!")
  (set -e; long_forms "$names") >"$work/long" 2>&1 &
  started+=("$!")
  GORACE=atexit_sleep_ms=0 GOFLAGS="$(go env GOFLAGS) -vet=off" go test -race -short -shuffle=on ./engine ./cmd/trctl ./control ./... || failed=$?
  for process in "${started[@]}"; do wait "$process" || failed=$?; done
  started=()
  cat "$work/emulated" "$work/long"
  return "$failed"
}

# Every kernel compiles for both architectures with the compilers of both CUDA
# releases, without spills and within its register limit (a test of the package),
# and at all for the one after them.
kernels() {
  local release library
  for release in "${NVRTCS[@]}"; do
    venv "${release%%==*}" "$release"
    library=$(find "$work/${release%%==*}" -name 'libnvrtc.so.1*' | head -n 1)
    echo "$release: $library"
    TRCTL_NVRTC=$library go test -count=1 -run 'NoSpills|TestLayout|Timeline' ./cuda/kernels
    "$work/trctl" kernels build --arch sm_80,sm_90a,sm_100 --models tiny-s --nvrtc "$library" --cache "$work/cubins"
  done
}

python_clients() {
  venv python -r examples/requirements.txt -r test/sdk/python/requirements.txt
  "$work/python/bin/python" examples/openai_client.py
  "$work/python/bin/python" examples/requests_client.py
  examples/curl.sh
  "$work/python/bin/python" -m unittest discover -s test/sdk/python
}

node_clients() {
  cp test/sdk/node/* "$work/"
  (cd "$work" && npm ci --silent --no-audit --no-fund && node --test)
}

go_clients() { (cd test/sdk/go && go test -count=1 ./...); }

# README's cluster section on three machines, with everything killed, drained and
# restarted; then upgraded to another build and back. Four minutes at most for both.
cluster() {
  local end=$((SECONDS + 240)) script
  need ip iproute2
  for script in run upgrade; do
    TRCTL=$work/trctl TRCTL_NEXT=$work/trctl-next PYTHON=$work/python/bin/python \
      timeout --kill-after=20 $((end - SECONDS)) "test/cluster/$script.sh"
  done
}

# evaluate MODELS/POLICY FLAG…: prints the report; trctl ends with 4 when a bound does not hold.
evaluate() { "$work/trctl" eval -o json "$@"; }

evaluations() {
  evaluate --n 100 --models tiny-s --min-accuracy 0.26 --max-accuracy 0.56
  evaluate --n 100 --models tiny-l --min-accuracy 0.96
  evaluate --n 100 --models tiny-s,tiny-l --policy r-stitch --min-accuracy 0.94 --max-large-share 0.15
  evaluate --n 100 --models tiny-s,tiny-l --policy r2r --min-accuracy 0.95 --max-large-share 0.07
}
