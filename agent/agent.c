#include "agent/agent.h"

#include "agent/blob.h"
#include "agent/control.h"
#include "agent/emulate_net.h"
#include "agent/link.h"
#include "agent/machine.h"
#include "agent/peer.h"
#include "agent/pipeline.h"
#include "agent/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_BYTES 16
#define OVERHEAD_BYTES ((int64_t)16 << 20) /* of an agent, beside what is planned */
#define IDLE_US 2000000                    /* a pipeline that rested so long goes at a memory warning */

/* Made once, kept in storage: a device stays itself over restarts. */
static void take_identity(struct agent *a)
{
    struct storage_map m;
    struct yk_diag why;
    uint8_t raw[ID_BYTES];
    bool known = false;
    if (a->storage->ops->map(a->storage, "identity", &m, NULL) == YK_OK) {
        if (m.len == 2 * ID_BYTES) {
            memcpy(a->id, m.data, m.len);
            known = yk_unhex(a->id, ID_BYTES, raw);
        }
        a->storage->ops->unmap(a->storage, &m);
    }
    if (!known) {
        net_random(a->net, raw, sizeof raw);
        yk_hex(raw, ID_BYTES, a->id);
        if (a->storage->ops->put(a->storage, "identity", a->id, 2 * ID_BYTES, &why) != YK_OK)
            log_warn("the identity is not kept: %s", why.text);
    }
    yk_hex(raw, ID_BYTES, a->id); /* lower case, whatever the file had */
}

/* Three quarters of what is there; where that is little, so much that a run, which takes up to a tenth and 16 MiB more
 * than is planned, stays below it. */
static int64_t default_memory(int64_t available)
{
    int64_t small = YK_MAX((available - OVERHEAD_BYTES) / 11 * 10, available / 4);
    return YK_MIN(available / 4 * 3, small);
}

static void take_config(struct agent *a, const struct agent_config *c)
{
    int n = 0;
    a->on_state = c->on_state;
    a->arg = c->arg;
    a->storage = c->storage;
    a->net = c->net;
    if (c->emulate) {
        a->emulate = yk_xalloc(sizeof *a->emulate);
        *a->emulate = *c->emulate;
        const struct agent_emulate *e = a->emulate;
        if (e->bytes_per_s > 0 || e->up_latency_ms > 0 || e->down_latency_ms > 0) {
            emulate_net_open(c->net, e, &a->emu_net);
            a->net = a->emu_net;
        }
    }
    take_identity(a);
    if (c->name && c->name[0])
        snprintf(a->name, sizeof a->name, "%s", c->name);
    else
        snprintf(a->name, sizeof a->name, "agent-%.8s", a->id);
    snprintf(a->class_name, sizeof a->class_name, "%s", c->class_name ? c->class_name : "workstation");
    a->scheduler_url = c->scheduler_url && c->scheduler_url[0] ? yk_xstrdup(c->scheduler_url) : NULL;
    a->listen_url = yk_xstrdup(c->listen_url && c->listen_url[0] ? c->listen_url : "tcp://127.0.0.1:0");
    while (c->data_roots && c->data_roots[n])
        n++;
    a->data_roots = yk_xalloc(((size_t)n + 1) * sizeof *a->data_roots);
    for (int i = 0; i < n; i++)
        a->data_roots[i] = yk_xstrdup(c->data_roots[i]);
    a->memory_bytes = c->memory_bytes > 0 ? c->memory_bytes : default_memory(machine_memory_available(""));
    if (a->emulate && a->emulate->memory_bytes > 0)
        a->memory_bytes =
            a->memory_bytes > 0 ? YK_MIN(a->memory_bytes, a->emulate->memory_bytes) : a->emulate->memory_bytes;
    a->threads = !c->threaded ? 1 : c->threads > 0 ? c->threads : machine_cores();
    a->sensors = (struct agent_sensors){.temperature_celsius = NAN, .battery_frac = NAN};
    uint64_t seed;
    net_random(a->net, &seed, sizeof seed);
    yk_rng_seed(&a->rng, seed);
}

static yk_err open_backends(struct agent *a, const struct agent_config *c, struct yk_diag *why)
{
    struct backends_config config = {.timeout_ms = c->backend_timeout_ms, .check_every = c->backend_check_every};
    const char *spec = c->backend && c->backend[0] ? c->backend : "auto";
    yk_err err = backends_open_with(spec, &config, a->pool, &a->backends, why);
    for (int i = 0; !err && i < a->backends.n_refused; i++)
        log_error("%s; going on with the others", a->backends.refused[i].text);
    return err;
}

yk_err agent_open(const struct agent_config *c, struct agent **out, struct yk_diag *why)
{
    if (!c->net || !c->storage || (!(c->scheduler_url && c->scheduler_url[0]) && !(c->listen_url && c->listen_url[0])))
        return yk_fail(
            why, YK_INVAL, "an agent needs a net, storage, and a scheduler to dial or an address to be dialled");
    struct agent *a = yk_xalloc(sizeof *a);
    take_config(a, c);
    yk_err err = pool_open(a->threads, &a->pool, why);
    if (!err)
        err = open_backends(a, c, why);
    if (!err)
        err = worker_open(c->net, "io", c->threaded, &a->io, why);
    if (!err)
        err = worker_open(c->net, "data", c->threaded, &a->data, why);
    if (!err)
        err = worker_open(c->net, "runner", c->threaded, &a->runner_thread, why);
    if (!err)
        err = cache_open(a->storage, a->io, CACHE_CAP_BYTES, &a->cache, why);
    if (!err) {
        blob_open(a);
        link_open(a);
        runner_open(a);
        err = peer_open(a, why);
    }
    if (err) {
        agent_close(a);
        return err;
    }
    *out = a;
    control_start(a);
    return YK_OK;
}

void agent_push_sensor(struct agent *a, const struct agent_sensors *s)
{
    a->sensors = *s;
}

void agent_memory_warning(struct agent *a)
{
    int64_t now = net_now_us(a->net);
    for (struct pipeline *p = a->pipelines, *next; p; p = next) {
        next = p->next;
        if (p->state != PIPELINE_READY || p->run || now - p->used_us < IDLE_US)
            continue;
        pipeline_fail(p, -1, "", YK_NOMEM, "the device is short of memory");
        pipeline_unload(p);
    }
    cache_trim(a->cache, 0);
}

static void let_go(struct agent *a, const char *leave)
{
    control_stop(a, leave);
    while (a->pipelines)
        pipeline_unload(a->pipelines);
    link_drop(a);
    blob_drop(a);
    peer_close(a);
}

void agent_suspend(struct agent *a)
{
    if (a->state == AGENT_SUSPENDED)
        return;
    core_state(a, AGENT_SUSPENDED, "suspended");
    let_go(a, "suspended");
}

void agent_resume(struct agent *a)
{
    struct yk_diag why;
    if (a->state != AGENT_SUSPENDED)
        return;
    if (peer_open(a, &why) != YK_OK)
        log_error("cannot listen again: %s", why.text);
    a->state = AGENT_CONNECTING;
    control_start(a);
}

const char *agent_url(const struct agent *a)
{
    return a->bound_url;
}

void agent_close(struct agent *a)
{
    if (!a)
        return;
    a->closing = a->stop = true;
    a->state = AGENT_CLOSED;
    if (a->runner)
        let_go(a, "closing");
    /* Jobs come back here; those of io may hand on to the runner, never the other way round. */
    worker_close(a->data);
    worker_close(a->io);
    if (a->blob)
        blob_close(a);
    runner_stop(a);
    worker_close(a->runner_thread);
    link_close(a);
    peer_close(a);
    runner_close(a);
    cache_close(a->cache);
    backends_close(&a->backends);
    pool_close(a->pool);
    if (a->emu_net)
        net_close(a->emu_net);
    for (int i = 0; a->data_roots[i]; i++)
        free(a->data_roots[i]);
    free(a->data_roots);
    free(a->emulate);
    free(a->scheduler_url);
    free(a->listen_url);
    free(a->bound_url);
    free(a);
}
