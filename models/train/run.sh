#!/bin/sh
# Trains routers (and the models) in one command: models/train/run.sh --out build/train
PYTHONPATH="$(cd "$(dirname "$0")/.." && pwd)" exec "${PYTHON:-python3}" -m train "$@"
