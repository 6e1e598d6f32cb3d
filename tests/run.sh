#!/usr/bin/env bash
# Runs the tests on Debian 12: installs what they need, builds, and runs each stage.
#
#   tests/run.sh          what every change must pass (under 30 minutes on two cores)
#   tests/run.sh --full   the long tier too: all cuts of all models, many seeds, long stops
#   tests/run.sh --list   names every test of each tier
#   tests/run.sh --only=STAGE[,STAGE]   lint, unit, sanitizers, threads, arm64, models, integration, fuzz
#
# YOKE_SEED=N repeats a seeded run; the seed is printed. The last line is the sum: "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh

full=0 list=0 only=
for argument in "$@"; do
    case $argument in
    --full) full=1 ;;
    --list) list=1 ;;
    --only=*) only=,${argument#--only=}, ;;
    -h | --help)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        echo "unknown argument $argument (known: --full, --list, --only=STAGE, --help)" >&2
        exit 2
        ;;
    esac
done

export YOKE_FULL=$full
export YOKE_SEED=${YOKE_SEED:-$(date +%s)}
export PYTHON=/usr/bin/python3 # Debian's, which has torch and onnx
export PYTHONDONTWRITEBYTECODE=1
export YOKE_MODELS=$PWD/build/models
export YOKE_ZOO=$PWD/build/zoo
side_by_side=$(nproc)
[ "$side_by_side" -le 4 ] || side_by_side=4
passed=0 failed=0 skipped=0
report=build/test-report
mkdir -p "$report"

wanted() { [ -z "$only" ] || [[ $only == *",$1,"* ]]; }

# stage NAME: COMMAND...  a stage that is one check.
stage() {
    local name=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
    fi
    echo "-- $name: $((SECONDS - start)) s"
}

# suite NAME BUILD CTEST-ARG...: a stage whose tests count one by one.
suite() {
    local name=$1 build=$2 start=$SECONDS log
    shift 2
    printf '\n== %s\n' "$name"
    log=$report/$name.log
    # Most tests use one core, and none decides by how long it takes; the longest begin first (COST).
    ctest --test-dir "build/$build" --output-on-failure -j "$side_by_side" "$@" >"$log" 2>&1
    local status=$? bad skip all
    all=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#' "$log")
    bad=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.*\*\*\*(Failed|Timeout|Exception|Not Run)' "$log")
    skip=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.*\*\*\*Skipped' "$log")
    if [ "$all" -eq 0 ] || { [ $status -ne 0 ] && [ "$bad" -eq 0 ]; }; then
        bad=$((bad + 1))
        all=$((all + 1))
        tail -n 30 "$log"
    fi
    [ "$bad" -eq 0 ] || sed -n '/\*\*\*\(Failed\|Timeout\|Exception\)/p;/\[  FAILED  \]/p;/ERROR:/p' "$log" | head -n 60
    passed=$((passed + all - bad - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
    echo "-- $name: $((all - bad - skip)) passed, $bad failed, $skip skipped, $((SECONDS - start)) s (log: $log)"
}

integration() {
    local name=integration start=$SECONDS log=$report/integration.log
    printf '\n== %s\n' "$name"
    "$PYTHON" tests/integration/run.py --bin build/release/bin 2>&1 | tee "$log" | grep -vE '^ok '
    local ok bad skip
    ok=$(grep -cE '^ok ' "$log") bad=$(grep -cE '^FAILED ' "$log") skip=$(grep -cE '^skipped ' "$log")
    grep -q '^integration: ' "$log" || bad=$((bad + 1)) # it did not reach its end
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    echo "-- $name: $ok passed, $bad failed, $skip skipped, $((SECONDS - start)) s (log: $log)"
}

# Forms that promise it give the same bits on aarch64 as here, where there is a fused multiply-add.
same_bits() {
    grep -qw fma /proc/cpuinfo || return 0
    build/release/bin/unit_bits | grep '^bits ' >"$report/bits-here" &&
        qemu-aarch64-static -L /usr/aarch64-linux-gnu build/arm64/bin/unit_bits | grep '^bits ' >"$report/bits-arm64" &&
        diff "$report/bits-here" "$report/bits-arm64"
}

# Warnings are errors in the release build; sanitizers change what the compiler can see and warn about.
build() {
    local werror=OFF
    [ "$1" != release ] && [ "$1" != arm64 ] || werror=ON
    cmake --preset "$1" -DYOKE_TESTS=ON -DYOKE_WERROR=$werror >"$report/build-$1.log" 2>&1 &&
        cmake --build --preset "$1" -- -k 0 >>"$report/build-$1.log" 2>&1 || {
        grep -E 'error|warning|FAILED' "$report/build-$1.log" | head -n 30
        return 1
    }
}

need_packages "${YOKE_BUILD_PACKAGES[@]}" clang-14 libclang-rt-14-dev clang-format ninja-build sqlite3 jq procps iproute2 python3 \
    python3-numpy python3-torch python3-torchvision python3-onnx libonnx-testdata dataset-fashion-mnist || exit 1

if [ $list -eq 1 ]; then
    build release || exit 1
    echo "# every change: build/release and build/dev (sanitizers)"
    ctest --test-dir build/release -N | sed -n 's/^ *Test *#[0-9]*: /ctest /p'
    "$PYTHON" tests/integration/run.py --list
    echo "# --full: the same with YOKE_FULL=1 (all cuts of all models, more seeds, longer stops), and"
    YOKE_FULL=1 "$PYTHON" tests/integration/run.py --list | grep -vxF -f <("$PYTHON" tests/integration/run.py --list)
    exit 0
fi

echo "seed $YOKE_SEED"
if wanted lint; then stage lint "$PYTHON" tests/lint/lint.py; fi
stage build-release build release
if wanted unit || wanted models; then stage golden-models "$PYTHON" tests/golden/make_models.py "$YOKE_MODELS"; fi
if wanted unit || wanted models; then
    zoo=(--small)
    [ $full -eq 0 ] || zoo=()
    stage golden-zoo "$PYTHON" tests/golden/make_zoo.py "$YOKE_ZOO" "${zoo[@]}"
    stage golden-variants "$PYTHON" tests/golden/make_variants.py "$YOKE_ZOO"
    stage golden-public "$PYTHON" tests/golden/make_public.py "$YOKE_ZOO"
fi
if wanted unit; then suite unit release -LE 'fuzz'; fi
if wanted sanitizers || wanted fuzz; then
    stage build-sanitizers build dev
    if wanted sanitizers; then YOKE_SANITIZED=1 suite sanitizers dev -LE fuzz; fi
    if wanted fuzz; then suite fuzz dev -L fuzz; fi
fi
if wanted threads; then
    stage build-threads build tsan
    suite threads tsan -R 'unit.(pool|worker|exec|log|metrics)|conformance.net|sim.' -E 'train_(split|memory)'
fi
if wanted arm64; then
    need_packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static || exit 1
    stage build-arm64 build arm64
    # Whole nets at a size that an emulated processor can do.
    rm -rf build/models-arm64 && mkdir -p build/models-arm64
    for net in resnet34_64 mobilenet_v2_64 encoder_2x64; do
        for end in onnx x.npy y.npy y64.npy; do
            [ ! -e "$YOKE_MODELS/$net.$end" ] || ln -s "$YOKE_MODELS/$net.$end" build/models-arm64/
        done
    done
    YOKE_MODELS=$PWD/build/models-arm64 suite arm64 arm64
    stage bits-of-arm64 same_bits
fi
if wanted integration; then integration; fi
if [ $full -eq 1 ] && wanted fuzz; then
    stage build-fuzz build fuzz
    for target in build/fuzz/bin/fuzz_*; do
        stage "fuzz-$(basename "$target")" "$target" -max_total_time=300 -timeout=10 -rss_limit_mb=2048 \
            -seed=$((YOKE_SEED % 4294967295)) "$(mktemp -d)" "tests/fuzz/corpus/$(basename "$target" | sed 's/^fuzz_//')"
    done
fi

printf '\nseed %s, %s min\n' "$YOKE_SEED" "$(((SECONDS + 59) / 60))"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
