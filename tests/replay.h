/* A replay of published measurements, for tests and the benchmark: the training of ResNet-34 over a host and an iPhone
 * that tests/data/mobilepipe_profile.json reports (repository AlxV07/mobilepipe-isef, commit 841cddc), as a fleet for
 * the planner. Nothing here was measured by us.
 *
 * Times of the parts between their cuts (to layer1, layer2, layer3, the rest) are the reported medians, by microbatch;
 * between sizes the planner interpolates. What was not measured is filled in by FLOPs:
 *   - inside a part every node takes the share of its FLOPs, forward and backward apart on the host; the phone was
 *     measured forward and backward in one call;
 *   - the host behind layer3: whole batches of 32 and 64 less what is before; smaller ones have the share of 32;
 *   - batches of 128 and 256 on the host alone: all parts as of 64, scaled to the reported whole;
 *   - to layer1 the phone was never measured, and so it cannot take a part of that: cuts are from layer1 on.
 * Memory was not reported: there is enough of it. */
#ifndef YK_TEST_REPLAY_H
#define YK_TEST_REPLAY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grad.h"
#include "common/json.h"
#include "common/op.h"
#include "common/passes.h"
#include "scheduler/cli/networks.h"
#include "scheduler/solve.h"

#define REPLAY_PARTS 4
#define REPLAY_SIZES 6
static const int64_t replay_sizes[REPLAY_SIZES] = {2, 4, 8, 16, 32, 64};

struct replay {
    struct json *profile;
    struct graph *forward, *graph;
    struct solve_training training;
    struct view view;
    struct view_agent agents[2]; /* host, phone */
    struct view_link links[2];
    struct view_time *times[2];
    char *forms[1];
    int32_t *part; /* by node */
};

static inline double replay_number(const struct json *j, const char *a, const char *b, const char *c)
{
    const struct json *at = json_find(j, a);
    at = b ? json_find(at, b) : at;
    at = c ? json_find(at, c) : at;
    return json_f64(at, -1);
}

/* Milliseconds of one of the four parts: of the host forward (0) and backward (1), of the phone both (2). -1: nobody
 * measured it. */
static inline double replay_part_ms(const struct replay *r, const char *host, int64_t size, int part, int what)
{
    static const char *const cuts[] = {"C1", "C2", "C3"};
    static const char *const keys[] = {"host_forward_ms", "host_backward_ms", "phone_forward_backward_ms"};
    const struct json *hosts = json_find(json_find(r->profile, "hosts"), host);
    const struct json *from = what == 2 ? json_find(r->profile, "phone") : hosts;
    char text[16], whole_text[16];
    int64_t whole_size = size <= 64 ? YK_MAX(size, (int64_t)32) : 64;
    snprintf(text, sizeof text, "%d", (int)YK_MIN(size, (int64_t)64));
    snprintf(whole_text, sizeof whole_text, "%d", (int)whole_size);
    const struct json *of = json_find(json_find(from, "stage_ms_by_microbatch_images"), text);
    if (what == 2) /* a cut's time is of all behind it */
        return part == 0 ? -1
               : part == 3
                   ? replay_number(of, "C3", keys[2], NULL)
                   : replay_number(of, cuts[part - 1], keys[2], NULL) - replay_number(of, cuts[part], keys[2], NULL);
    double ms, scale = 1;
    if (size > 64) {
        char at[16];
        snprintf(at, sizeof at, "%d", (int)size);
        scale = replay_number(hosts, "whole_model_batch_ms_by_batch_images", at, NULL) /
                replay_number(hosts, "whole_model_batch_ms_by_batch_images", "64", NULL);
    }
    if (part < 3) {
        ms = replay_number(of, cuts[part], keys[what], NULL);
        ms -= part ? replay_number(of, cuts[part - 1], keys[what], NULL) : 0;
        return ms * scale;
    }
    const struct json *most = json_find(json_find(from, "stage_ms_by_microbatch_images"), whole_text);
    double before = replay_number(most, "C3", keys[0], NULL) + replay_number(most, "C3", keys[1], NULL);
    double rest = replay_number(hosts, "whole_model_batch_ms_by_batch_images", whole_text, NULL) - before;
    return replay_number(of, "C3", keys[what], NULL) * (rest / before) * scale;
}

/* Which part a node of the forward graph is in: the first that has a weight of its layer, or of one before it. */
static inline void replay_parts(struct replay *r, const struct grad_info *info)
{
    const struct graph *f = r->forward, *g = r->graph;
    int32_t *of = calloc((size_t)f->n_nodes + 1, sizeof *of), part = 0;
    r->part = calloc((size_t)g->n_nodes + 1, sizeof *r->part);
    for (int32_t i = 0; i < f->n_nodes; i++) {
        for (int32_t k = 0; k < f->nodes[i].n_in; k++) {
            int32_t v = f->nodes[i].in[k];
            const char *name = v >= 0 ? f->values[v].name : "";
            if (strncmp(name, "layer", 5) == 0 && name[5] >= '1' && name[5] <= '4')
                part = YK_MAX(part, name[5] - '1');
        }
        of[i] = part;
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        r->part[i] = of[info->of[i]];
    free(of);
}

static inline yk_err replay_flops(const struct replay *r, double *flops, struct yk_diag *why)
{
    const struct graph *g = r->graph;
    struct shapes shapes;
    int64_t *sizes = calloc((size_t)g->n_syms + 1, sizeof *sizes);
    graph_sizes(g, NULL, 8, sizes);
    yk_err err = shapes_infer(g, sizes, NULL, &shapes, why);
    struct op_ctx *ctx = calloc(1, sizeof *ctx);
    for (int32_t i = 0; i < g->n_nodes && !err; i++) {
        shapes_node(g, &shapes, i, ctx);
        flops[i] = op_flops(ctx);
    }
    free(ctx);
    free(sizes);
    if (!err)
        shapes_fini(&shapes);
    return err;
}

static inline void replay_profile(struct replay *r, const char *host, const double *flops)
{
    static const int64_t sizes[] = {2, 4, 8, 16, 32, 64, 128, 256};
    const struct graph *g = r->graph;
    double sum[REPLAY_PARTS][3] = {{0}};
    int32_t n[2] = {0};
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int both = 0; both < 2; both++)
            sum[r->part[i]][both ? 2 : i >= r->training.first_backward] += flops[i];
    for (int a = 0; a < 2; a++) {
        r->times[a] = calloc((size_t)g->n_nodes * YK_COUNT(sizes) + 1, sizeof **r->times);
        for (int32_t i = 0; i < g->n_nodes; i++)
            for (size_t s = 0; s < YK_COUNT(sizes); s++) {
                int what = a ? 2 : i >= r->training.first_backward, part = r->part[i];
                double ms = a && sizes[s] > 64 ? -1 : replay_part_ms(r, host, sizes[s], part, what);
                if (ms >= 0)
                    r->times[a][n[a]++] = (struct view_time){
                        .node = i, .size = sizes[s], .ms = ms * flops[i] / YK_MAX(sum[part][what], 1.0)};
            }
        r->agents[a].times = r->times[a];
        r->agents[a].n_times = n[a];
    }
}

/* host: "linux" or "mac". path: of mobilepipe_profile.json. Errors: those of reading it, and of making the network. */
static inline yk_err replay_open(struct replay *r, const char *path, const char *host, struct yk_diag *why)
{
    const struct networks_options o = {.classes = 10, .channels = 3, .height = 224, .width = 224};
    struct grad_options options;
    struct grad_info info;
    memset(r, 0, sizeof *r);
    yk_err err = json_load(path, 1 << 20, &r->profile, why);
    if (!err)
        err = networks_make("resnet34", &o, &r->forward, why);
    if (!err)
        err = passes_train(r->forward, NULL, NULL, why);
    grad_options_init(&options);
    if (!err)
        err = grad_build(r->forward, &options, &r->graph, &info, why);
    if (err)
        return err;
    r->graph->n_staying = r->graph->n_outputs - info.model_output - info.n_model_outputs;
    r->training = (struct solve_training){.of = info.of,
        .first_loss = info.first_loss,
        .first_backward = info.first_backward,
        .n_forward = r->forward->n_nodes,
        .state_bytes = 1};
    replay_parts(r, &info);
    double *flops = calloc((size_t)r->graph->n_nodes + 1, sizeof *flops);
    if ((err = replay_flops(r, flops, why)) == YK_OK)
        replay_profile(r, host, flops);
    free(flops);
    const struct json *link = json_find(r->profile, "link");
    r->forms[0] = "reported";
    r->view = (struct view){
        .agents = r->agents, .n_agents = 2, .links = r->links, .n_links = 2, .forms = r->forms, .n_forms = 1};
    for (int a = 0; a < 2; a++) {
        struct view_agent *to = &r->agents[a];
        snprintf(to->name, sizeof to->name, "%s", a ? "phone" : "host");
        snprintf(to->id, sizeof to->id, "%s", a ? "phone" : "host");
        snprintf(to->class_name, sizeof to->class_name, "%s", a ? "phone" : "workstation");
        to->usable = true;
        to->memory_bytes = (int64_t)1 << 40;
        to->slow_factor = 1;
        r->links[a] = (struct view_link){.from = a,
            .to = 1 - a,
            .bytes_per_s = json_f64(json_find(link, "bytes_per_s"), 0),
            .latency_ms = json_f64(json_find(link, a ? "one_way_fixed_ms_from_phone" : "one_way_fixed_ms_to_phone"), 0),
            .shared = 0,
            .origin = VIEW_MEASURED};
    }
    return err;
}

static inline void replay_close(struct replay *r)
{
    json_free(r->profile);
    graph_close(r->graph);
    graph_close(r->forward);
    free(r->times[0]);
    free(r->times[1]);
    free(r->part);
}

/* The plan of one step: the first stage on the host, halves on the wire. microbatch 0: the planner's choice. */
static inline yk_err replay_plan(
    const struct replay *r, int64_t batch, int64_t microbatch, struct plan **out, struct yk_diag *why)
{
    static const bool codecs[] = {true, true, false};
    const struct solve_request q = {.graph = r->graph,
        .model = "resnet34",
        .job = "train",
        .objective = SOLVE_THROUGHPUT,
        .batch = batch,
        .microbatch = microbatch,
        .source = 0,
        .codec_allowed = codecs,
        .pin_first = true,
        .training = &r->training};
    return solve_plan(&q, &r->view, out, why);
}

/* Of the microbatches that were reported the best one. */
static inline yk_err replay_best(const struct replay *r, int64_t batch, struct plan **out, struct yk_diag *why)
{
    *out = NULL;
    for (int i = 0; i < REPLAY_SIZES; i++) {
        struct plan *p = NULL;
        yk_err err = replay_sizes[i] > batch ? YK_OK : replay_plan(r, batch, replay_sizes[i], &p, why);
        if (err)
            return err;
        if (p && (!*out || p->step_ms < (*out)->step_ms)) {
            plan_free(*out);
            *out = p;
        } else {
            plan_free(p);
        }
    }
    return YK_OK;
}

#endif
