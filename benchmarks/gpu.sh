#!/bin/sh
# What only GPUs can show: training in bf16, compiled, sharded over N of them, with less memory.
# Usage: benchmarks/gpu.sh [N] [options of benchmarks/gpu.py]; N is by default all GPUs of this machine.
# Prints one JSON object as the last line; see benchmarks/gpu.py.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
case "${1:-}" in
'' | -*) n=$("$python" -c 'import torch; print(max(torch.cuda.device_count(), 1))') ;;
*) n=$1 && shift ;;
esac
exec "$python" -m torch.distributed.run --standalone --nproc-per-node "$n" benchmarks/gpu.py --json "$@"
