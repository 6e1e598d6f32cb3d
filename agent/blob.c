#include "agent/blob.h"

#include "agent/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FLYING 4
#define RETRY_US 500000
#define MAX_TRIES 3

struct fetch {
    struct fetch *next;
    char hex[HASH_HEX_SIZE];
    int64_t max_bytes, id, bytes;
    int tries;
    bool asked;
    void *buf; /* being filled */
    bool storing;
    void (*fn)(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched);
    void *arg;
    struct agent *agent;
};

struct blob_client {
    struct chan *chan;
    struct core_dial *dialing;
    struct net_timer *retry, *kick;
    struct fetch *fetches;
    int64_t next_id;
};

static void go(struct agent *a);

void blob_open(struct agent *a)
{
    a->blob = yk_xalloc(sizeof *a->blob);
}

static void unlink_fetch(struct blob_client *b, struct fetch *f)
{
    struct fetch **p = &b->fetches;
    while (*p != f)
        p = &(*p)->next;
    *p = f->next;
}

static void end(struct fetch *f, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    struct agent *a = f->agent;
    unlink_fetch(a->blob, f);
    free(f->buf);
    f->fn(f->arg, err, why, e, fetched);
    free(f);
}

/* The connection is gone: what was asked is asked again a few times. */
static void lost(struct agent *a, const char *why)
{
    struct blob_client *b = a->blob;
    for (struct fetch *f = b->fetches, *next; f; f = next) {
        next = f->next;
        if (f->storing)
            continue;
        free(f->buf);
        f->buf = NULL;
        f->asked = false;
        if (++f->tries >= MAX_TRIES || a->closing)
            end(f, YK_CLOSED, why, NULL, 0);
    }
}

static void on_retry(void *arg)
{
    struct agent *a = arg;
    a->blob->retry = NULL;
    go(a);
    source_retry(a);
}

static void retry_later(struct agent *a)
{
    if (!a->blob->retry && !a->closing)
        a->blob->retry = net_timer(a->net, RETRY_US, on_retry, a);
}

static struct fetch *find_id(struct blob_client *b, int64_t id)
{
    struct fetch *f = b->fetches;
    while (f && !(f->asked && f->id == id))
        f = f->next;
    return f;
}

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    (void)c;
    struct agent *a = arg;
    if (m->type == WIRE_TYPE_blob_refused) {
        struct fetch *f = find_id(a->blob, m->as.blob_refused.id);
        char why[256];
        snprintf(why, sizeof why, "yoked refused blob %.12s: %.180s", f ? f->hex : "", m->as.blob_refused.text);
        if (f)
            end(f, yk_err_from_name(m->as.blob_refused.error), why, NULL, 0);
        go(a);
    } else if (m->type == WIRE_TYPE_refuse) {
        log_warn("yoked refused the blob connection: %s", m->as.refuse.text);
    }
    return YK_OK;
}

static void on_put(void *arg, yk_err err, const char *why, struct cache_entry *e)
{
    struct fetch *f = arg;
    struct agent *a = f->agent;
    end(f, err, why, e, f->bytes);
    go(a);
}

static void on_body(void *arg, yk_err err)
{
    struct fetch *f = arg;
    if (err)
        return; /* `lost` deals with it */
    void *buf = f->buf;
    f->buf = NULL;
    f->storing = true;
    cache_put(f->agent->cache, f->hex, buf, (size_t)f->bytes, on_put, f);
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)c;
    struct agent *a = arg;
    if (m->type != WIRE_TYPE_blob)
        return YK_FORMAT;
    const struct wire_blob *w = &m->as.blob;
    struct fetch *f = find_id(a->blob, w->id);
    if (!f || f->buf || f->storing || strcmp(f->hex, w->hash) != 0)
        return YK_FORMAT;
    if (w->bytes < 0 || w->bytes > f->max_bytes)
        return YK_LIMIT;
    f->buf = yk_try_aligned((size_t)w->bytes + 1);
    if (!f->buf)
        return YK_NOMEM;
    f->bytes = w->bytes;
    *sink = (struct chan_sink){f->buf, (size_t)w->bytes, on_body, f};
    return YK_OK;
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    (void)err;
    struct agent *a = arg;
    chan_close(c, false);
    a->blob->chan = NULL;
    log_info("the connection for blobs ended: %s", why);
    lost(a, why);
    retry_later(a); /* whoever needs it then dials; not at once, in case we are what is wrong */
}

static const struct chan_on on_blob = {on_message, on_stream, on_closed};

static void on_dial(void *arg, yk_err err, struct net_conn *conn, const char *url)
{
    struct agent *a = arg;
    a->blob->dialing = NULL;
    if (err) {
        char why[200];
        snprintf(why, sizeof why, "cannot dial %.100s for blobs: %s", url, yk_err_text(err));
        lost(a, why);
        if (a->blob->fetches)
            retry_later(a);
        return;
    }
    a->blob->chan = chan_open(conn, &on_blob, a);
    chan_trust(a->blob->chan);
    struct wire_hello h = {.kind = "data",
        .version_major = WIRE_VERSION_MAJOR,
        .version_minor = WIRE_VERSION_MINOR,
        .agent = a->id,
        .name = a->name,
        .term = a->term,
        .purpose = "blob"};
    chan_send(a->blob->chan, WIRE_TYPE_hello, &h);
    go(a);
    source_retry(a);
}

static void on_kick(void *arg)
{
    struct agent *a = arg;
    a->blob->kick = NULL;
    go(a);
}

static void go(struct agent *a)
{
    struct blob_client *b = a->blob;
    int flying = 0;
    for (struct fetch *f = b->fetches, *next; f; f = next) {
        next = f->next;
        if (f->asked) {
            flying++;
            continue;
        }
        struct cache_entry *e;
        if (cache_use(a->cache, f->hex, &e, NULL) == YK_OK) {
            end(f, YK_OK, "", e, 0);
            if (!b->kick) /* the list may be another now */
                b->kick = net_timer(a->net, 0, on_kick, a);
            return;
        }
    }
    if (!b->fetches || !a->scheduler_url || b->retry)
        return;
    if (!b->chan) {
        const char *url = a->scheduler_url;
        if (!b->dialing)
            b->dialing = core_dial(a, &url, 1, CORE_DIAL_US, on_dial, a);
        return;
    }
    for (struct fetch *f = b->fetches; f && flying < MAX_FLYING; f = f->next) {
        if (f->asked)
            continue;
        f->id = ++b->next_id;
        struct wire_blob_get get = {.id = f->id, .hash = f->hex};
        if (chan_send(b->chan, WIRE_TYPE_blob_get, &get) != YK_OK)
            break;
        f->asked = true;
        flying++;
    }
}

void blob_fetch(struct agent *a, const char *hex, int64_t max_bytes,
    void (*fn)(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched), void *arg)
{
    struct fetch *f = yk_xalloc(sizeof *f), **p = &a->blob->fetches;
    snprintf(f->hex, sizeof f->hex, "%s", hex);
    f->max_bytes = max_bytes;
    f->fn = fn;
    f->arg = arg;
    f->agent = a;
    while (*p)
        p = &(*p)->next;
    *p = f;
    if (!a->blob->kick)
        a->blob->kick = net_timer(a->net, 0, on_kick, a);
}

static yk_err stream(struct agent *a, enum chan_prio prio, enum wire_type type, const void *head,
    const struct net_iov *body, int n, net_on_io done, void *arg)
{
    struct blob_client *b = a->blob;
    if (b->chan)
        return chan_stream(b->chan, prio, type, head, body, n, done, arg);
    if (!b->dialing && !b->retry && !a->closing && a->scheduler_url) {
        const char *url = a->scheduler_url;
        b->dialing = core_dial(a, &url, 1, CORE_DIAL_US, on_dial, a);
    }
    return YK_CLOSED;
}

yk_err blob_result(
    struct agent *a, const struct wire_result *head, const struct net_iov *body, int n, net_on_io done, void *arg)
{
    return stream(a, CHAN_DATA, WIRE_TYPE_result, head, body, n, done, arg);
}

yk_err blob_part(
    struct agent *a, const struct wire_part *head, const struct net_iov *body, int n, net_on_io done, void *arg)
{
    return stream(a, CHAN_BULK, WIRE_TYPE_part, head, body, n, done, arg);
}

int64_t blob_last_rx_us(const struct agent *a)
{
    return a->blob->chan ? chan_last_rx_us(a->blob->chan) : 0;
}

void blob_drop(struct agent *a)
{
    struct blob_client *b = a->blob;
    core_dial_cancel(b->dialing);
    b->dialing = NULL;
    struct chan *c = b->chan;
    b->chan = NULL;
    if (c)
        chan_close(c, false);
    lost(a, "the connection to yoked was closed");
}

void blob_close(struct agent *a)
{
    struct blob_client *b = a->blob;
    if (!b)
        return;
    blob_drop(a);
    net_timer_cancel(b->retry);
    net_timer_cancel(b->kick);
    while (b->fetches)
        end(b->fetches, YK_CLOSED, "the agent closes", NULL, 0);
    free(b);
    a->blob = NULL;
}
