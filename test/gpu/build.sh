#!/bin/bash
# Builds what run.sh needs into a folder, compressed: test/gpu/build.sh FOLDER
set -eu
cd "$(dirname "$0")/../.."
out=${1:?folder}
mkdir -p "$out"
out=$(cd "$out" && pwd)
go build -trimpath -ldflags '-s -w' -o "$out/trctl" ./cmd/trctl
for package in cuda/selftest cuda/kernels worker/executor/cudaexec engine; do
  go test -c -trimpath -ldflags '-s -w' -o "$out/${package##*/}.test" "./$package"
done
cc -shared -fPIC -O1 -o "$out/fault.so" test/gpu/fault.c -ldl -lpthread
for name in trctl selftest.test kernels.test cudaexec.test engine.test; do
  gzip -9 -f -k "$out/$name" && rm "$out/$name"
done
ls -l "$out"
