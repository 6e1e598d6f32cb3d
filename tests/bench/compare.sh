#!/bin/sh
# Time of one inference and one device: ours against ONNX Runtime 1.30 and PyTorch 1.13, in one run on this machine.
# Usage: compare.sh [--build=DIR] [--rounds=N] [--threads=1,2] [MODEL...]
# Fetches its peers and makes the models by itself (python3-torch, npm), compares all answers first, then prints
# `model threads ours_ms ort_ms ratio torch_ms ratio`: medians of interleaved repeats; what there is not is `-`.
here=$(cd "$(dirname "$0")" && pwd)
exec /usr/bin/python3 "$here/compare.py" "$@"
