/* How long planning takes: rows `model devices cuts ms gap`; the least processor time of several runs. A row that
 * ends with `joint` chose the microbatch too; the others got one. Devices are of four paces behind links of 1 Gbit/s,
 * or a thousand of plan_fleets.h; rows with `random` in the first word have a pace and links of their own for each.
 * Models of $YOKE_MODELS, else the graphs of plan_models.h. Every plan is checked. */
#include "common/onnx.h"
#include "common/passes.h"
#include "scheduler/solve.h"
#include "tests/bench/plan_fleets.h"
#include "tests/bench/plan_models.h"

#include <dirent.h>
#include <string.h>
#include <time.h>

#define DEVICES 8
#define SLOW_MS 500 /* behind it no further run */

static void die(const char *what, const struct yk_diag *why)
{
    fprintf(stderr, "plan: %s: %s\n", what, why->text);
    exit(1);
}

struct fleet {
    struct view view;
    struct view_agent agents[DEVICES];
    struct view_link links[DEVICES * DEVICES];
};

static void make_fleet(struct fleet *f, int32_t devices, double gflops, bool random)
{
    struct yk_rng r;
    yk_rng_seed(&r, 7);
    *f = (struct fleet){.view = {.agents = f->agents, .links = f->links, .n_agents = devices}};
    for (int32_t i = 0; i < devices; i++) {
        struct view_agent *a = &f->agents[i];
        snprintf(a->name, sizeof a->name, "d%d", i);
        a->usable = true;
        a->memory_bytes = (int64_t)((random ? 2 + 6 * yk_rng_unit(&r) : 4) * 1e9);
        a->gflops = gflops * (random ? 1 + 3 * yk_rng_unit(&r) : 1 + i % 4);
        a->slow_factor = 1;
        for (int32_t k = 0; k < devices; k++)
            if (k != i)
                f->links[f->view.n_links++] = (struct view_link){.from = i,
                    .to = k,
                    .bytes_per_s = random ? 2e7 + 2e8 * yk_rng_unit(&r) : 1.25e8,
                    .latency_ms = random ? 0.1 + yk_rng_unit(&r) : 0.3,
                    .shared = -1,
                    .origin = VIEW_MEASURED};
    }
}

/* Of this thread: the machine may do other work. */
static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void row(const char *model, const struct graph *g, const struct view *v, int64_t microbatch)
{
    static const bool codecs[] = {true, true, true};
    struct solve_request q = {.graph = g,
        .model = model,
        .job = "batch",
        .batch = 16,
        .microbatch = microbatch,
        .objective = SOLVE_THROUGHPUT,
        .codec_allowed = microbatch ? NULL : codecs};
    double best = 0, gap = 0;
    for (int run = 0; run < 7; run++) {
        struct plan *p;
        struct yk_diag why = {0};
        double start = cpu_ms(), ms;
        yk_err err = solve_plan(&q, v, &p, &why);
        ms = cpu_ms() - start;
        if (err || plan_check(p, g, NULL, &why))
            die(model, &why);
        if (p->best_single && p->step_ms > p->best_single_ms * (1 + 1e-9))
            die(model, &(struct yk_diag){.text = "slower than one device"});
        best = run == 0 ? ms : YK_MIN(best, ms);
        gap = p->gap;
        plan_free(p);
        if (best > SLOW_MS)
            break;
    }
    printf("%-32s %7d %5d %10.2f %8.5f%s\n", model, v->n_agents, g->n_nodes - 1, best, gap, microbatch ? "" : " joint");
    fflush(stdout);
}

static void bench(const char *model, const struct graph *g, double gflops)
{
    static struct fleet f;
    char random[80];
    for (int32_t devices = 2; devices <= DEVICES; devices *= 2) {
        make_fleet(&f, devices, gflops, false);
        row(model, g, &f.view, 1);
        row(model, g, &f.view, 0);
    }
    snprintf(random, sizeof random, "%s-random", model);
    make_fleet(&f, DEVICES, gflops, true);
    row(random, g, &f.view, 1);
    row(random, g, &f.view, 0);
    for (int i = 0; i < 2 * FLEETS; i++) {
        struct view v = make_thousand(i / 2, i & 1);
        snprintf(random, sizeof random, "%s-%s%s", model, fleets[i / 2].name, i & 1 ? "-random" : "");
        row(random, g, &v, 1);
        row(random, g, &v, 0);
        free(v.agents);
        free(v.links);
    }
}

static void bench_file(const char *folder, const char *file)
{
    struct graph *g = NULL;
    struct yk_diag why = {0};
    char path[4096], name[64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    snprintf(name, sizeof name, "%.*s", (int)YK_MIN(strlen(file) - 5, (size_t)24), file);
    if (onnx_import(path, &g, NULL, &why) || passes_infer(g, NULL, NULL, &why))
        die(path, &why);
    for (char *c = name; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    bench(name, g, 5);
    graph_close(g);
}

int main(void)
{
    static const int small[] = {3, 4, 6, 3}, large[] = {3, 8, 36, 3};
    const char *folder = getenv("YOKE_MODELS");
    DIR *d = folder ? opendir(folder) : NULL;
    printf("%-32s %7s %5s %10s %8s\n", "model", "devices", "cuts", "ms", "gap");
    for (struct dirent *e; d && (e = readdir(d));)
        if (strlen(e->d_name) > 5 && strcmp(e->d_name + strlen(e->d_name) - 5, ".onnx") == 0)
            bench_file(folder, e->d_name);
    if (d) {
        closedir(d);
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"resnet-34", "resnet-152", "transformer-24"};
        struct maker b;
        struct yk_diag why = {0};
        struct graph *g = i == 2 ? make_encoder(&b, 24) : make_resnet(&b, i ? large : small, i == 1);
        if (passes_infer(g, NULL, NULL, &why))
            die(names[i], &why);
        bench(names[i], g, 20);
        graph_close(g);
        free(b.zeros);
    }
    return 0;
}
