/* What the planner makes of published measurements (tests/replay.h): a row for each host and batch, what their system
 * took, what the host took alone, what our plan takes by the same numbers, and the plan. A replay, no measurement. */
#include "tests/replay.h"

#include <math.h>

static double observed(const struct replay *r, const char *host, int64_t batch)
{
    const struct json *steps = json_find(r->profile, "observed_training_step");
    double best = INFINITY;
    for (size_t i = 0; i < json_len(steps); i++) {
        const struct json *s = json_at(steps, i);
        if (strcmp(json_str(json_find(s, "host"), ""), host) == 0 && json_i64(json_find(s, "batch"), 0) == batch)
            best = YK_MIN(best, json_f64(json_find(s, "step_ms_median"), INFINITY));
    }
    return best;
}

static void put_plan(const struct replay *r, const struct plan *p)
{
    const struct plan_pipeline *line = &p->pipelines[0];
    int32_t last = line->stages[0].nodes[line->stages[0].n_nodes - 1].last;
    printf("microbatch %lld, depth %d, cut behind node %d (%s, layer%d); bottleneck %s\n", (long long)p->microbatch,
        line->depth, last, r->graph->nodes[last].name, r->part[last] + 1, p->bottleneck);
}

int main(int argc, char **argv)
{
    static const char *const hosts[] = {"linux", "mac"};
    static const int64_t batches[] = {64, 128, 256};
    const char *path = argc > 1 ? argv[1] : "tests/data/mobilepipe_profile.json";
    printf("replay of published stage times (host + phone over USB); milliseconds of a training step of ResNet-34\n");
    printf("%-6s %5s %10s %10s %10s %6s  plan\n", "host", "batch", "host alone", "theirs", "our plan", "ratio");
    for (int h = 0; h < 2; h++) {
        struct replay r;
        struct yk_diag why = {0};
        yk_err err = replay_open(&r, path, hosts[h], &why);
        for (size_t i = 0; i < YK_COUNT(batches) && !err; i++) {
            struct plan *p = NULL;
            char text[16];
            if ((err = replay_best(&r, batches[i], &p, &why)))
                break;
            snprintf(text, sizeof text, "%d", (int)batches[i]);
            double theirs = observed(&r, hosts[h], batches[i]);
            double alone = replay_number(
                json_find(json_find(r.profile, "hosts"), hosts[h]), "whole_model_batch_ms_by_batch_images", text, NULL);
            printf("%-6s %5lld %10.1f ", hosts[h], (long long)batches[i], alone);
            if (isinf(theirs))
                printf("%10s ", "-");
            else
                printf("%10.1f ", theirs);
            printf("%10.1f %6.3f  ", p->step_ms, p->step_ms / alone);
            put_plan(&r, p);
            plan_free(p);
        }
        replay_close(&r);
        if (err) {
            fprintf(stderr, "replay: %s\n", why.text);
            return 1;
        }
    }
    return 0;
}
