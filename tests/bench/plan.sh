#!/bin/sh
# How long planning takes: rows `model devices cuts ms gap` on one core; `joint` ends rows that chose the microbatch too,
# `random` in the first word marks links at random. $1: the build folder (build/release).
cd "$(dirname "$0")/../.." || exit 1
exec taskset -c 0 "${1:-build/release}/bin/bench_plan"
