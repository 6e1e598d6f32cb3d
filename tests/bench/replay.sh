#!/bin/sh
# What the planner makes of published measurements of a host and a phone: their step, the host alone, our plan by the same
# numbers. A replay, labelled as one. $1: the build folder (build/release).
cd "$(dirname "$0")/../.." || exit 1
exec "${1:-build/release}/bin/bench_replay" tests/data/mobilepipe_profile.json
