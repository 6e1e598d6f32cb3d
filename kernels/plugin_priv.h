/* Inside kernels/plugin*.c: one loaded plug-in, its thread and the calls that go over it. */
#ifndef YK_PLUGIN_PRIV_H
#define YK_PLUGIN_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/plugin.h"
#include "kernels/plugin_view.h"

#define PLUGIN_WHY 256
#define PLUGIN_TICKETS 64

struct plugin;
struct plugin_device;

/* One call into the plug-in: made by the caller, run by the plug-in's thread. If the caller gives up it is never freed.
 */
struct plugin_call {
    void (*fn)(struct plugin *p, struct plugin_call *c);
    const char *what; /* "prepare" */
    bool done;        /* under lock */
    enum yoke_status status;
    char why[PLUGIN_WHY];
    struct plugin_device *device;
    const void *const *weights;
    const struct yoke_segment *segment;
    struct yoke_prepared prepared;
    uint8_t *claimed;
    void *handle;
};

/* Whom a done belongs to. A ring of them: a second done for an old run finds that nobody waits. */
struct plugin_ticket {
    struct plugin *plugin;
    bool waiting, done; /* under lock */
    enum yoke_status status;
    char why[PLUGIN_WHY];
};

struct plugin {
    struct backend base;
    struct backend_ops ops; /* ours, with the plug-in's name */
    char *path;
    char name[16], isa[BACKEND_FORM_MAX];
    void *library;
    const struct yoke_backend *api;
    void *state; /* the plug-in's */
    uint32_t flags;
    struct backends_config config;
    struct backend *ref;
    bool strict;

    pthread_t thread;
    pthread_mutex_t turn; /* one caller at a time */
    pthread_mutex_t lock;
    pthread_cond_t wake, back;
    struct plugin_call *call; /* under lock */
    bool stop;                /* under lock */
    struct plugin_ticket tickets[PLUGIN_TICKETS];
    unsigned next_ticket;

    atomic_bool out; /* claims nothing any more */
    bool hung;       /* under lock: never called again */
    struct yk_diag lost;
    struct plugin_call *left;           /* under lock, of a hung one: what was not answered ... */
    struct plugin_device *left_devices; /* ... and memory that it may still touch: kept for ever */

    /* of the thread that runs */
    int failures; /* in a row */
    int64_t runs, checked_at, excused_until;
    double run_ms, check_ms;
};

double plugin_now_ms(void);

/* The thread and its calls (plugin_call.c). */
yk_err plugin_start(struct plugin *p, struct yk_diag *why);
void plugin_stop(struct plugin *p); /* not if it hung */
/* Posts c and waits; frees nothing. YK_TIMEOUT: the plug-in is quarantined, c belongs to it now. */
yk_err plugin_do(struct plugin *p, struct plugin_call *c, int64_t limit_ms, struct yk_diag *why);
/* A run: posts c (which submits with *ticket), waits for both it and done. canceled is polled whenever `back` is
 * signalled; then cancel is called once. */
yk_err plugin_wait(struct plugin *p, struct plugin_call *c, struct plugin_ticket *t, const atomic_bool *canceled,
    int64_t limit_ms, struct yk_diag *why);
struct plugin_ticket *plugin_ticket_take(struct plugin *p);
void plugin_done(void *arg, enum yoke_status status, const char *why);
bool plugin_is_hung(struct plugin *p);
yk_err plugin_status(enum yoke_status s);

/* False if a float among them is NaN or infinite (plugin_check.c). */
bool plugin_finite(enum dtype t, const void *data, int64_t count);

/* Segments (plugin_segment.c). */
yk_err plugin_prepare(struct backend *b, const struct backend_segment *seg, void **handle, int64_t *scratch_bytes,
    int64_t *packed_bytes, struct yk_diag *why);
yk_err plugin_set_weights(struct backend *b, void *handle, const void *const *weights, struct yk_diag *why);
void plugin_submit(struct backend *b, void *handle, const struct backend_run *run,
    void (*done)(void *arg, yk_err err, const char *why), void *arg);
void plugin_cancel(struct backend *b, void *handle);
void plugin_release(struct backend *b, void *handle);

#endif
