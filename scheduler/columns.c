#include "scheduler/columns.h"

#include <string.h>

#define T COLUMN_TEXT
#define I COLUMN_INT
#define R COLUMN_REAL
#define B COLUMN_BOOL

static const struct column agents[] = {
    {"agent", T, "ID", "hash", true},
    {"name", T, "NAME", "", false},
    {"class", T, "CLASS", "", false},
    {"state", T, "STATE", "", false},
    {"mode", T, "DEVICE", "", false},
    {"backends", T, "BACKENDS", "", true},
    {"cores", I, "CORES", "", false},
    {"threads", I, "THREADS", "", true},
    {"memory_bytes", I, "MEMORY", "bytes", false},
    {"memory_available_bytes", I, "AVAILABLE", "bytes", true},
    {"gflops", R, "GFLOP/S", "", false},
    {"gbytes_per_s", R, "GB/S", "", true},
    {"heat", T, "HEAT", "", false},
    {"temperature_celsius", R, "CELSIUS", "", false},
    {"battery_frac", R, "BATTERY", "frac", false},
    {"emulated", B, "EMULATED", "", false},
    {"slow_factor", R, "SLOW", "", true},
    {"last_seen_at", T, "SEEN", "time", false},
    {"jobs", I, "JOBS", "", false},
    {"reason", T, "WHY", "", false},
};

static const struct column links[] = {
    {"from_agent", T, "FROM", "", false},
    {"to_agent", T, "TO", "", false},
    {"bytes_per_s", R, "RATE", "bytes/s", false},
    {"latency_ms", R, "LATENCY", "ms", false},
    {"duplex", T, "DUPLEX", "", false},
    {"cpu_ns_per_byte", R, "CPU NS/BYTE", "", true},
    {"origin", T, "ORIGIN", "", false},
    {"url", T, "URL", "", true},
    {"text", T, "TEXT", "", true},
    {"measured_at", T, "MEASURED", "time", true},
};

static const struct column models[] = {
    {"model", T, "MODEL", "", false},
    {"owner", T, "OWNER", "", true},
    {"graph", T, "GRAPH", "hash", true},
    {"bytes", I, "SIZE", "bytes", false},
    {"nodes", I, "NODES", "", false},
    {"weight_bytes", I, "WEIGHTS", "bytes", false},
    {"inputs", T, "INPUTS", "", false},
    {"outputs", T, "OUTPUTS", "", false},
    {"preprocess", T, "PREPROCESS", "", true},
    {"created_at", T, "ADDED", "time", true},
};

static const struct column jobs[] = {
    {"job", I, "JOB", "", false},
    {"kind", T, "KIND", "", false},
    {"model", T, "MODEL", "", false},
    {"state", T, "STATE", "", false},
    {"objective", T, "OBJECTIVE", "", false},
    {"source", T, "SOURCE", "", true},
    {"samples", I, "SAMPLES", "", false},
    {"done", I, "DONE", "", false},
    {"accuracy", R, "ACCURACY", "", false},
    {"images_per_s", R, "IMAGES/S", "", false},
    {"created_at", T, "CREATED", "time", true},
    {"started_at", T, "STARTED", "time", true},
    {"ended_at", T, "ENDED", "time", false},
    {"replans", I, "REPLANS", "", true},
    {"error", T, "ERROR", "", false},
    {"plan", I, "PLAN", "", true},
    {"owner", T, "OWNER", "", true},
};

static const struct column plans[] = {
    {"plan", I, "PLAN", "", false},
    {"job", I, "JOB", "", false},
    {"model", T, "MODEL", "", false},
    {"graph", T, "GRAPH", "hash", true},
    {"reason", T, "REASON", "", false},
    {"objective", T, "OBJECTIVE", "", false},
    {"microbatch", I, "MICROBATCH", "", false},
    {"batch", I, "BATCH", "", false},
    {"pipelines", I, "PIPELINES", "", true},
    {"stages", I, "STAGES", "", false},
    {"step_ms", R, "STEP", "ms", false},
    {"cost_ms", R, "COST", "ms", true},
    {"bound_ms", R, "BOUND", "ms", true},
    {"gap", R, "GAP", "frac", true},
    {"bottleneck", T, "BOTTLENECK", "", false},
    {"best_single", T, "BEST SINGLE", "", true},
    {"best_single_ms", R, "BEST SINGLE STEP", "ms", true},
    {"measured_step_ms", R, "MEASURED", "ms", false},
    {"created_at", T, "MADE", "time", false},
};

static const struct column stages[] = {
    {"plan", I, "PLAN", "", false},
    {"pipeline", I, "PIPELINE", "", false},
    {"stage", I, "STAGE", "", false},
    {"agent", T, "AGENT", "", false},
    {"nodes", T, "NODES", "", false},
    {"predicted_ms", R, "PREDICTED", "ms", false},
    {"measured_ms", R, "MEASURED", "ms", false},
    {"memory_bytes", I, "MEMORY", "bytes", false},
};

static const struct column stage_times[] = {
    {"measured_at", T, "MEASURED", "time", false},
    {"job", I, "JOB", "", false},
    {"plan", I, "PLAN", "", false},
    {"pipeline", I, "PIPELINE", "", true},
    {"stage", I, "STAGE", "", false},
    {"agent", T, "AGENT", "", false},
    {"microbatches", I, "MICROBATCHES", "", false},
    {"compute_ms", R, "COMPUTE", "ms", false},
    {"wait_ms", R, "WAIT", "ms", false},
    {"sent_bytes", I, "SENT", "bytes", false},
    {"send_ms", R, "SENDING", "ms", false},
    {"codec_error", R, "CODEC ERROR", "", true},
    {"nonfinite", I, "NONFINITE", "", true},
    {"late", I, "LATE", "", true},
};

static const struct column plan_accuracy[] = {
    {"plan", I, "PLAN", "", false},
    {"job", I, "JOB", "", false},
    {"model", T, "MODEL", "", false},
    {"objective", T, "OBJECTIVE", "", false},
    {"stages", I, "STAGES", "", false},
    {"batch", I, "BATCH", "", false},
    {"predicted_ms", R, "PREDICTED", "ms", false},
    {"measured_ms", R, "MEASURED", "ms", false},
    {"ratio", R, "RATIO", "", false},
    {"measured_batches", R, "BATCHES", "", true},
};

static const struct column cloud_seconds[] = {
    {"job", I, "JOB", "", false},
    {"agent", T, "AGENT", "", false},
    {"cloud_s", R, "CLOUD", "s", false},
    {"microbatches", I, "MICROBATCHES", "", false},
};

#define ROW(name)                                    \
    {                                                \
#name, "v_" #name, name, (int)YK_COUNT(name) \
    }

const struct columns columns_all[] = {
    ROW(agents),
    ROW(links),
    ROW(models),
    ROW(jobs),
    ROW(plans),
    ROW(stages),
    ROW(stage_times),
    ROW(plan_accuracy),
    ROW(cloud_seconds),
    {NULL, NULL, NULL, 0},
};

const struct columns *columns_find(const char *listing)
{
    for (const struct columns *c = columns_all; c->listing; c++)
        if (strcmp(c->listing, listing) == 0)
            return c;
    return NULL;
}
