#include "agent/probe.h"

#include "agent/machine.h"
#include "common/hash.h"
#include "common/json.h"
#include "kernels/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void probe_key(struct agent *a, char out[17])
{
    struct hash h;
    uint8_t digest[HASH_BYTES];
    char text[64];
    hash_init(&h);
    for (int i = 0; i < a->backends.n; i++) {
        if (backends_lost(a->backends.at[i], NULL))
            continue;
        const char *isa = a->backends.at[i]->ops->isa(a->backends.at[i]);
        hash_update(&h, a->backends.at[i]->ops->name, strlen(a->backends.at[i]->ops->name) + 1);
        hash_update(&h, isa, strlen(isa) + 1);
    }
    snprintf(text, sizeof text, "threads %d", a->threads);
    hash_update(&h, text, strlen(text));
    hash_final(&h, digest);
    yk_hex(digest, 8, out);
}

static void storage_key(struct agent *a, char *out, size_t size)
{
    char key[17];
    probe_key(a, key);
    snprintf(out, size, "probe/%s", key);
}

static bool recall(struct agent *a)
{
    char key[64];
    struct storage_map m;
    struct json *doc = NULL;
    bool ok = false;
    storage_key(a, key, sizeof key);
    if (a->storage->ops->map(a->storage, key, &m, NULL) != YK_OK)
        return false;
    if (json_parse((const char *)m.data, m.len, &doc, NULL) == YK_OK) {
        const struct json *list = json_find(doc, "backends");
        bool any = false;
        ok = list && json_kind(list) == JSON_ARRAY && (int)json_len(list) == a->backends.n;
        for (int i = 0; ok && i < a->backends.n; i++) {
            const struct json *b = json_at(list, (size_t)i);
            a->speeds[i].gflops = json_f64(json_find(b, "gflops"), 0);
            a->speeds[i].gbytes_per_s = json_f64(json_find(b, "gbytes_per_s"), 0);
            any = any || a->speeds[i].gflops > 0;
            ok = !strcmp(json_str(json_find(b, "name"), ""), a->backends.at[i]->ops->name);
        }
        ok = ok && any;
    }
    json_free(doc);
    a->storage->ops->unmap(a->storage, &m);
    return ok;
}

static void remember(struct agent *a)
{
    struct yk_buf buf = {0};
    struct json_out o;
    struct yk_diag why;
    char key[64];
    json_out_init(&o, &buf, 0);
    json_open(&o, '{');
    json_put_key(&o, "backends");
    json_open(&o, '[');
    for (int i = 0; i < a->backends.n; i++) {
        if (backends_lost(a->backends.at[i], NULL))
            continue;
        json_open(&o, '{');
        json_put_key(&o, "name");
        json_put_str(&o, a->backends.at[i]->ops->name);
        json_put_key(&o, "gflops");
        json_put_f64(&o, a->speeds[i].gflops);
        json_put_key(&o, "gbytes_per_s");
        json_put_f64(&o, a->speeds[i].gbytes_per_s);
        json_close(&o, '}');
    }
    json_close(&o, ']');
    json_close(&o, '}');
    storage_key(a, key, sizeof key);
    if (!buf.failed && a->storage->ops->put(a->storage, key, buf.data, buf.len, &why) != YK_OK)
        log_warn("the measured speeds are not kept: %s", why.text);
    yk_buf_free(&buf);
}

int64_t probe_room(int64_t memory_bytes)
{
    int64_t free_bytes = machine_memory_available("");
    int64_t room = free_bytes > 0 ? free_bytes : PROFILE_DEVICE_BYTES * 2;
    return (memory_bytes > 0 ? YK_MIN(room, memory_bytes) : room) / 2;
}

struct probing {
    struct agent *agent;
    void (*done)(struct agent *a);
    bool recalled;
    struct core_speed speeds[CORE_BACKENDS];
};

static void measure_run(void *arg)
{
    struct probing *p = arg;
    struct agent *a = p->agent;
    for (int i = 0; !p->recalled && i < a->backends.n && !a->stop; i++)
        profile_device(
            a->backends.at[i], probe_room(a->memory_bytes), &p->speeds[i].gflops, &p->speeds[i].gbytes_per_s);
}

static void measure_done(void *arg)
{
    struct probing *p = arg;
    struct agent *a = p->agent;
    if (!a->closing && !p->recalled) {
        memcpy(a->speeds, p->speeds, sizeof a->speeds);
        remember(a);
    }
    if (!a->closing)
        p->done(a);
    free(p);
}

void probe_device(struct agent *a, void (*done)(struct agent *a))
{
    struct probing *p = yk_xalloc(sizeof *p);
    p->agent = a;
    p->done = done;
    p->recalled = recall(a);
    worker_post(a->runner_thread, measure_run, measure_done, p);
}
