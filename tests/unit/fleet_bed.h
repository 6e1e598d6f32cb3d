/* A registry on a net in memory with three scripted agents, pc, phone and cloud. */
#ifndef TESTS_FLEET_BED_H
#define TESTS_FLEET_BED_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#include "scheduler/fleet.h"
#include "tests/fake_agent.h"

#define LEASE_MS 6000

struct here {
    char dir[64], path[96];
    struct net *net;
    struct store *store;
    struct fleet *fleet;
    struct net_listener *listener;
    int joined, lost, messages, changes;
    char change[200];
    char why[300];
    int relinks;
    bool better;
    char relink[200];
    bool busy;
    int store_errors;
    struct fake a, b, c;
    struct fake *all[4];
};

static void on_error(void *arg, int64_t job, yk_err err, const char *text)
{
    struct here *h = arg;
    (void)job;
    (void)err;
    (void)text;
    h->store_errors++;
}

static void on_joined(void *arg, struct fleet_agent *a)
{
    struct here *h = arg;
    (void)a;
    h->joined++;
}

static void on_lost(void *arg, struct fleet_agent *a, const char *why)
{
    struct here *h = arg;
    (void)a;
    h->lost++;
    snprintf(h->why, sizeof(h->why), "%s", why);
}

static yk_err on_message(void *arg, struct fleet_agent *a, struct wire_msg *msg)
{
    struct here *h = arg;
    (void)a;
    (void)msg;
    h->messages++;
    return YK_OK;
}

static yk_err on_stream(void *arg, struct fleet_agent *a, struct wire_msg *head, struct chan_sink *sink)
{
    (void)arg;
    (void)a;
    (void)head;
    (void)sink;
    return YK_FORMAT;
}

static yk_err on_blob(void *arg, const char *hash, const uint8_t **data, int64_t *bytes, struct yk_diag *why)
{
    static const uint8_t content[100000] = {1, 2, 3};
    (void)arg;
    if (strcmp(hash, "known") != 0)
        return yk_fail(why, YK_NOTFOUND, "no blob %s", hash);
    *data = content;
    *bytes = sizeof(content);
    return YK_OK;
}

static bool on_quiet(void *arg)
{
    return !((struct here *)arg)->busy;
}

static void on_changed(void *arg, struct fleet_agent *a, const char *kind, const char *text)
{
    struct here *h = arg;
    (void)a;
    h->changes++;
    snprintf(h->change, sizeof(h->change), "%s: %s", kind, text);
}

static void on_relinked(void *arg, struct fleet_agent *a, struct fleet_agent *b, bool better, const char *text)
{
    struct here *h = arg;
    h->relinks++;
    h->better = better;
    snprintf(h->relink, sizeof(h->relink), "%s %s: %s", a->name, b->name, text);
}

static const struct fleet_on on = {
    on_joined, on_lost, on_message, on_stream, on_blob, on_quiet, on_changed, on_relinked};

static void open_fleet(struct here *h)
{
    struct fleet_config fc = {.net = h->net, .store = h->store, .term = 7, .lease_ms = LEASE_MS, .on = &on, .arg = h};
    h->fleet = fleet_open(&fc);
    assert_int_equal(net_listen(h->net, "mem://yoked", fleet_accept, h->fleet, &h->listener, NULL), YK_OK);
}

static int setup(void **state)
{
    struct here *h = yk_xalloc(sizeof(*h));
    snprintf(h->dir, sizeof(h->dir), "/tmp/yoke-fleet-XXXXXX");
    assert_non_null(mkdtemp(h->dir));
    snprintf(h->path, sizeof(h->path), "%s/yoke.db", h->dir);
    assert_int_equal(net_mem_open(3, &h->net), YK_OK);
    struct store_config c = {.net = h->net, .path = h->path, .on_error = on_error, .arg = h};
    assert_int_equal(store_open(&c, &h->store, NULL), YK_OK);
    open_fleet(h);
    fake_init(&h->a, h->net, "mem://yoked", "pc");
    fake_init(&h->b, h->net, "mem://yoked", "phone");
    fake_init(&h->c, h->net, "mem://yoked", "cloud");
    h->all[0] = &h->a;
    h->all[1] = &h->b;
    h->all[2] = &h->c;
    h->a.others = h->b.others = h->c.others = h->all;
    *state = h;
    return 0;
}

static int teardown(void **state)
{
    struct here *h = *state;
    char command[128];
    for (int i = 0; i < 3; i++)
        fake_kill(h->all[i]);
    net_listener_close(h->listener);
    fleet_close(h->fleet);
    store_close(h->store);
    net_close(h->net);
    snprintf(command, sizeof(command), "rm -r %s", h->dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(h->store_errors, 0);
    free(h);
    return 0;
}

static void run_ms(struct here *h, int64_t ms)
{
    net_mem_run_for(h->net, ms * 1000);
}

static struct fleet_agent *agent_of(struct here *h, const char *name)
{
    return fleet_find(h->fleet, name);
}

#endif
