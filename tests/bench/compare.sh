#!/bin/bash
# Time of one inference, and of ResNet-34's convolution gradients, on one device: ours against ONNX Runtime 1.30 and
# PyTorch 1.13, in one run on this machine.
# Usage: compare.sh [--build=DIR] [--rounds=N] [--repeats=N] [--threads=1,2] [--cpu] [--best] [--no-torch] [MODEL...]
# Needs a build with -DYOKE_TESTS=ON (preset release). Fetches its peers (apt, npm) and makes the models by itself,
# compares all answers first, then prints a line a row, `model threads ours_ms ort_ms ratio torch_ms ratio`: medians of
# interleaved repeats; what there is not is `-`. MODEL: names without '@' of the rows wanted, as resnet34.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../deploy/packages.sh"
peers=(python3-numpy python3-onnx python3-torch python3-torchvision libopenblas0-pthread)
command -v npm >/dev/null || peers+=(npm)
need_packages "${peers[@]}" >&2 || exit 1
exec /usr/bin/python3 "$here/compare.py" "$@"
