#!/usr/bin/env bash
# The main job on one machine: a scheduler, an emulated PC and an emulated phone, a trained network and 10,000 real images.
# Run on Debian 12 as root or with sudo rights. Installs what is missing, builds, runs, stops everything it started.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh

say() { printf '\n== %s\n' "$*"; }

say "packages and build"
need_packages "${YOKE_BUILD_PACKAGES[@]}" dataset-fashion-mnist sqlite3 jq
cmake --preset release -DYOKE_TESTS=OFF >/dev/null
cmake --build --preset release --target yoked yoke-agent yoke | tail -n 1
bin=$PWD/build/release/bin

work=$(mktemp -d)
pictures=$PWD/build/demo
mkdir -p "$pictures"
pids=()
stop() {
    trap - EXIT
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

# wait_for SECONDS COMMAND...: until it succeeds; on failure shows the logs.
wait_for() {
    local end=$((SECONDS + $1)) # bash's clock of whole seconds
    shift
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "gave up waiting for: $*" >&2
            tail -n 20 "$work"/*.log >&2
            return 1
        fi
        sleep 0.1
    done
}

say "a scheduler, a PC at 16 GFLOP/s and a phone at 8 GFLOP/s behind a 40 MB/s half-duplex link"
"$bin/yoked" --db="$work/yoke.db" --rest=http://127.0.0.1:0 --listen=tcp://127.0.0.1:0 >"$work/ready" 2>"$work/yoked.log" &
pids+=($!)
wait_for 20 grep -q '^ready ' "$work/ready"
mkdir -p "$work/data"
YOKE_REST=$(sed -n 's/^ready .*rest=\([^ ]*\).*/\1/p' "$work/ready")
listen=$(sed -n 's/^ready .*listen=\([^ ]*\).*/\1/p' "$work/ready")
export YOKE_REST
"$bin/yoke-agent" --scheduler="$listen" --state="$work/pc" --name=pc --class=workstation --threads=1 \
    --emulate=config/emulate/pc.json --data-root=/usr/share/datasets --data-root="$work/data" 2>"$work/pc.log" &
pids+=($!)
"$bin/yoke-agent" --scheduler="$listen" --state="$work/phone" --name=phone --class=phone --threads=1 \
    --emulate=config/emulate/phone.json 2>"$work/phone.log" &
pids+=($!)
yoke() { "$bin/yoke" "$@"; }
wait_for 20 sh -c "[ \$('$bin/yoke' --json agents | jq 'map(select(.state == \"alive\")) | length') = 2 ]"
wait_for 30 sh -c "'$bin/yoke' --json links | jq -e 'any(.from_agent == \"pc\" and .to_agent == \"phone\")'"

yoke model add tests/data/fmnist_cnn.onnx --name=fmnist
say "fleet"
yoke agents
say "links"
yoke links

job=(--source=pc --batch=500)
say "the plan"
yoke plan fmnist --job=batch --objective=throughput "${job[@]}" --explain
yoke plan fmnist --job=batch --objective=throughput "${job[@]}" --json >"$work/plan.json"

# A plan is a file to edit. Two stages by force: the first half of the nodes on the PC, the rest on the phone ...
jq '(.forms | length) as $n | .pipelines = [{"share": 1, "depth": 4, "order": "forward-first", "stages": [
        {"agent": "pc", "nodes": [[0, ($n / 2 | floor) - 1]]},
        {"agent": "phone", "nodes": [[($n / 2 | floor), $n - 1]]}]}] | .cuts = []' "$work/plan.json" >"$work/two.json"
# ... and everything on the best single device.
jq '(.forms | length) as $n | .pipelines = [{"share": 1, "depth": 2, "order": "forward-first", "stages": [
        {"agent": .best_single, "nodes": [[0, $n - 1]]}]}] | .cuts = []' "$work/plan.json" >"$work/single.json"

run() { # run LABEL ARG...
    local label=$1
    shift
    say "10,000 test images: $label"
    yoke batch fmnist --data=fashion-mnist --objective=throughput "${job[@]}" "$@" --json | tee "$work/last.json" >/dev/null
    jq -rs --arg what "$label" '.[-1] | "accuracy \(.accuracy * 10000 | round / 10000)  \(.samples) images  \(.images_per_s | round) images/s  \(.samples / .images_per_s * 10 | round / 10) s  (\($what))"' "$work/last.json"
}
run "the planner's plan"
run "two stages by force" --plan="$work/two.json"
run "the best single device" --plan="$work/single.json"

# Training: a small residual network over the first 4,000 images, alone and together, step by step.
say "training a small ResNet: data and model"
mkdir -p "$work/data/fashion-4000"
idx() { # idx NAME COUNT HEADER BYTES: the first COUNT records of BYTES each
    local from=/usr/share/datasets/fashion-mnist/$1.gz to=$work/data/fashion-4000/$1 head=${#3}
    # shellcheck disable=SC2059 # the header is a format
    (set +o pipefail && printf "$3" && gzip -dc "$from" | tail -c +$((head / 4 + 1)) | head -c $(($2 * $4))) >"$to"
}
idx train-images-idx3-ubyte 4000 '\x00\x00\x08\x03\x00\x00\x0f\xa0\x00\x00\x00\x1c\x00\x00\x00\x1c' 784
idx train-labels-idx1-ubyte 4000 '\x00\x00\x08\x01\x00\x00\x0f\xa0' 1
idx t10k-images-idx3-ubyte 1000 '\x00\x00\x08\x03\x00\x00\x03\xe8\x00\x00\x00\x1c\x00\x00\x00\x1c' 784
idx t10k-labels-idx1-ubyte 1000 '\x00\x00\x08\x01\x00\x00\x03\xe8' 1
yoke model new resnet-small --classes=10 --input=1x28x28 --seed=1 "$work/resnet.onnx"
yoke model add "$work/resnet.onnx" --name=resnet
step=(--source=pc --batch=64)
yoke plan resnet --job=train "${step[@]}" --json >"$work/train.json"
yoke plan resnet --job=train "${step[@]}" --explain
jq '.forward_nodes as $n | .pipelines = [{"share": 1, "depth": 1, "stages": [
        {"agent": .best_single, "nodes": [[0, $n - 1]]}]}] | .cuts = []' "$work/train.json" >"$work/train-single.json"

train() { # train LABEL NAME ARG...
    local label=$1 name=$2
    shift 2
    say "three epochs of 4,000 images: $label"
    yoke train resnet --data=fashion-4000 "${step[@]}" --epochs=3 --seed=1 --lr=0.1 --schedule=cosine --output="$work/$name.onnx" \
        --plot="$pictures/$name.svg" --json "$@" >"$work/$name.jsonl"
    jq -rs --arg what "$label" '.[-1] as $final | map(select(.step).ms) | sort | .[length / 2 | floor] as $ms
        | "\($ms | round) ms a step  final loss \($final.final_loss * 1e4 | round / 1e4)  test accuracy \($final.test_accuracy)  (\($what))"' \
        "$work/$name.jsonl"
}
train "alone on the best device" alone --plan="$work/train-single.json"
train "PC and phone together, the planner's plan" together --plan="$work/train.json"
curve() { jq -r 'select(.step) | "\(.step) \(.loss)"' "$work/$1.jsonl"; }
if ! cmp <(curve alone) <(curve together) || ! cmp "$work/alone.onnx" "$work/together.onnx"; then
    echo "the loss curves or the trained models differ" >&2
    exit 1
fi
echo "loss curves equal"
yoke job "$(jq -rs '.[-1].job' "$work/together.jsonl")" --timeline="$pictures/step.svg" | grep -E '^timeline'
echo "the loss curve is in build/demo/together.svg"

say "predicted and measured, by SQL"
sqlite3 -readonly -header -column "$work/yoke.db" 'select * from v_plan_accuracy'

say "stopping"
kill "${pids[@]}"
wait "${pids[@]}" 2>/dev/null || true
pids=()
echo "done"
