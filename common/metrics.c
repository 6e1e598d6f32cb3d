#include "common/metrics.h"

#include <stdatomic.h>

enum metric_kind { COUNTER, GAUGE, HISTOGRAM };

static const struct {
    const char *name, *help;
    enum metric_kind kind;
} rows[] = {
#define C(name, help) {#name, help, COUNTER},
#define G(name, help) {#name, help, GAUGE},
#define H(name, help) {#name, help, HISTOGRAM},
    METRICS(C, G, H)
#undef C
#undef G
#undef H
};

/* Upper ends of the buckets in microseconds: 100 us to about 1.5 h by powers of four; the last one is +Inf. */
#define BUCKETS 14

struct cell {
    atomic_int_fast64_t value; /* of a histogram: the number of observations */
    atomic_int_fast64_t sum_us;
    atomic_int_fast64_t bucket[BUCKETS];
};
static struct cell cells[METRIC_COUNT];

void metrics_add(enum metric m, int64_t n)
{
    atomic_fetch_add_explicit(&cells[m].value, n, memory_order_relaxed);
}

void metrics_set(enum metric m, int64_t value)
{
    atomic_store_explicit(&cells[m].value, value, memory_order_relaxed);
}

void metrics_observe_us(enum metric m, int64_t micros)
{
    int64_t end = 100;
    for (int i = 0; i < BUCKETS; i++, end *= 4) {
        if (micros <= end) {
            atomic_fetch_add_explicit(&cells[m].bucket[i], 1, memory_order_relaxed);
            break;
        }
    }
    atomic_fetch_add_explicit(&cells[m].sum_us, micros, memory_order_relaxed);
    atomic_fetch_add_explicit(&cells[m].value, 1, memory_order_relaxed);
}

int64_t metrics_get(enum metric m)
{
    return atomic_load_explicit(&cells[m].value, memory_order_relaxed);
}

void metrics_print(struct yk_buf *out)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    for (int m = 0; m < METRIC_COUNT; m++) {
        struct cell *c = &cells[m];
        const char *name = rows[m].name;
        yk_buf_printf(out, "# HELP yoke_%s %s.\n# TYPE yoke_%s %s\n", name, rows[m].help, name, kinds[rows[m].kind]);
        if (rows[m].kind != HISTOGRAM) {
            yk_buf_printf(out, "yoke_%s %lld\n", name, (long long)metrics_get((enum metric)m));
            continue;
        }
        /* One total for +Inf and _count, so that the lines of one scrape agree with each other. */
        int64_t total = metrics_get((enum metric)m), seen = 0, end = 100;
        for (int i = 0; i < BUCKETS; i++, end *= 4) {
            seen += atomic_load_explicit(&c->bucket[i], memory_order_relaxed);
            yk_buf_printf(out, "yoke_%s_bucket{le=\"%.9g\"} %lld\n", name, (double)end * 1e-6, (long long)seen);
        }
        total = YK_MAX(total, seen);
        yk_buf_printf(out, "yoke_%s_bucket{le=\"+Inf\"} %lld\nyoke_%s_sum %.6f\nyoke_%s_count %lld\n", name,
            (long long)total, name, (double)atomic_load_explicit(&c->sum_us, memory_order_relaxed) * 1e-6, name,
            (long long)total);
    }
}
