/* How long planning takes: rows `model devices cuts ms gap` for a batch of 16 in microbatches that the planner chooses,
 * over devices of unequal pace behind links of 100 MB/s. Models of $YOKE_MODELS, else a chain. Every plan is checked.
 */
#include "common/onnx.h"
#include "common/passes.h"
#include "scheduler/solve.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 8
#define RUNS 3

static void die(const char *what, const struct yk_diag *why)
{
    fprintf(stderr, "plan: %s: %s\n", what, why->text);
    exit(1);
}

static struct graph *make_chain(int n)
{
    struct graph *g = graph_open(0);
    char name[16];
    graph_sym(g, "N");
    int32_t v = graph_add_value(g, "x", VALUE_INPUT, DT_F32);
    g->values[v].rank = 2;
    g->values[v].dims = yk_arena_alloc(g->arena, 2, sizeof(struct dim));
    g->values[v].dims[0] = (struct dim){.value = -1, .sym = 0};
    g->values[v].dims[1] = (struct dim){.value = 4096, .sym = -1};
    g->inputs = yk_arena_alloc(g->arena, 1, sizeof v);
    g->inputs[g->n_inputs++] = v;
    for (int i = 0; i < n; i++) {
        int32_t out;
        snprintf(name, sizeof name, "v%d", i);
        out = graph_add_value(g, name, VALUE_NODE, DT_NONE);
        graph_add_node(g, name, op_find("", "Relu"), &v, 1, &out, 1);
        v = out;
    }
    g->outputs = yk_arena_alloc(g->arena, 1, sizeof v);
    g->outputs[g->n_outputs++] = v;
    return g;
}

static void bench(const char *model, const struct graph *g, double gflops)
{
    for (int32_t devices = 2; devices <= DEVICES; devices *= 2) {
        struct view_agent agents[DEVICES] = {0};
        struct view_link links[DEVICES * DEVICES];
        struct view view = {.agents = agents, .links = links, .n_agents = devices};
        struct solve_request q = {.graph = g, .model = model, .job = "batch", .batch = 16};
        double best = 0, gap = 0;
        q.objective = SOLVE_THROUGHPUT;
        for (int32_t i = 0; i < devices; i++) {
            snprintf(agents[i].name, sizeof agents[i].name, "d%d", i);
            agents[i].usable = true;
            agents[i].memory_bytes = (int64_t)4 << 30;
            agents[i].gflops = gflops * (1 + i % 4);
            agents[i].slow_factor = 1;
            for (int32_t k = 0; k < devices; k++)
                if (k != i)
                    links[view.n_links++] = (struct view_link){.from = i,
                        .to = k,
                        .bytes_per_s = 1e8,
                        .latency_ms = 0.3,
                        .shared = -1,
                        .origin = VIEW_MEASURED};
        }
        for (int run = 0; run < RUNS; run++) {
            struct plan *p;
            struct yk_diag why = {0};
            if (solve_plan(&q, &view, &p, &why))
                die(model, &why);
            if (p->best_single && p->step_ms > p->best_single_ms * (1 + 1e-9))
                die(model, &(struct yk_diag){.text = "slower than one device"});
            best = run == 0 ? p->solver_ms : YK_MIN(best, p->solver_ms);
            gap = p->gap;
            plan_free(p);
            if (best > 2000)
                break;
        }
        printf("%-24s %2d %5d %10.2f %8.5f\n", model, devices, g->n_nodes - 1, best, gap);
        fflush(stdout);
    }
}

int main(void)
{
    const char *folder = getenv("YOKE_MODELS");
    printf("%-24s %2s %5s %10s %8s\n", "model", "n", "cuts", "ms", "gap");
    DIR *d = folder ? opendir(folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        struct graph *g = NULL;
        struct yk_diag why = {0};
        char path[4096], name[64];
        if (len < 6 || strcmp(e->d_name + len - 5, ".onnx") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        snprintf(name, sizeof name, "%.*s", (int)YK_MIN(len - 5, (size_t)24), e->d_name);
        if (onnx_import(path, &g, NULL, &why) || passes_infer(g, NULL, NULL, &why))
            die(path, &why);
        bench(name, g, 5);
        graph_close(g);
    }
    if (d)
        closedir(d);
    for (int n = 60; !d && n <= 200; n += 140) {
        char name[32];
        struct graph *g = make_chain(n);
        snprintf(name, sizeof name, "chain-%d", n);
        bench(name, g, 0.05);
        graph_close(g);
    }
    return 0;
}
