#!/bin/bash
# Time of one whole training step (forward, loss, backward, SGD with momentum) on one device: ours against PyTorch 1.13,
# in one run on this machine.
# Usage: train.sh [--build=DIR] [--rounds=N] [--threads=N] [--cpu] [--best] [MODEL...]
# Needs a build with -DYOKE_TESTS=ON (preset release). Makes the models with `yoke model new`, compares the losses of the
# first steps, then prints a line a row, `model ours_ms torch_ms ratio`: medians (--best: the least) of interleaved
# steps; and on standard error the peak memory of both, which fails over the plan
# (and a tenth, and 16 MiB) or over PyTorch's. MODEL: names of the rows wanted, as cnn.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../deploy/packages.sh"
need_packages python3-numpy python3-onnx python3-torch python3-torchvision libopenblas0-pthread >&2 || exit 1
exec /usr/bin/python3 "$here/train.py" "$@"
