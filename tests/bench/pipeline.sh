#!/bin/bash
# Two agents on two cores as a pipeline: what a forced cut reaches of both speeds, with a slow second device, over a slow
# link, and against the same experiment in PyTorch. Answers are compared first, then it times, in one run on this machine.
# Usage: pipeline.sh [--only=train,half,torch,link,link-large,infer] [--forced] [--microbatch=N] [--repeats=N] [--cuts=N]
#                    [--rounds=N] [--batch=N]
# Needs a build (preset release). Without --only: all but link (every cut of a CNN) and link-large (ResNet-34), which take
# a quarter of an hour each (--forced: with them). Prints, besides lines of what was tried:
#   pipeline efficiency X       training of ResNet-34 at 224: the split's speed over the sum of both alone
#   half-speed ratio X          the second device at half speed: the split's step over the first one's alone
#   torch pipeline: torch_ms A ours_ms B ratio B/A
#   planner within X of the best by force (MODEL)          over 40 MB/s, half duplex
#   inference pipeline efficiency X
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../deploy/packages.sh"
need_packages python3-numpy python3-onnx python3-torch python3-torchvision libopenblas0-pthread util-linux >&2 || exit 1
exec /usr/bin/python3 "$here/pipeline.py" "$@"
