/* Calls into a plug-in, all made by its own thread, and waits with a limit. */
#include "kernels/plugin_priv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"

double plugin_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

yk_err plugin_status(enum yoke_status s)
{
    switch (s) {
    case YOKE_OK:
        return YK_OK;
    case YOKE_INVALID:
        return YK_INVAL;
    case YOKE_UNSUPPORTED:
        return YK_UNSUPPORTED;
    case YOKE_NO_MEMORY:
        return YK_NOMEM;
    case YOKE_CANCELED:
        return YK_CANCELED;
    default:
        return YK_INTERNAL;
    }
}

static void *plugin_main(void *arg)
{
    struct plugin *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->call && !p->stop)
            pthread_cond_wait(&p->wake, &p->lock);
        struct plugin_call *c = p->call;
        if (!c)
            break;
        pthread_mutex_unlock(&p->lock);
        c->fn(p, c);
        pthread_mutex_lock(&p->lock);
        if (p->hung) /* it came back too late: nobody waits, nothing more is asked of it */
            break;
        c->done = true;
        p->call = NULL;
        pthread_cond_broadcast(&p->back);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

yk_err plugin_start(struct plugin *p, struct yk_diag *why)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->turn, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->back, &attr);
    pthread_condattr_destroy(&attr);
    for (int i = 0; i < PLUGIN_TICKETS; i++)
        p->tickets[i].plugin = p;
    int e = pthread_create(&p->thread, NULL, plugin_main, p);
    if (!e)
        return YK_OK;
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->back);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->turn);
    return yk_fail(why, yk_err_from_errno(e), "cannot start the thread of %s", p->path);
}

void plugin_stop(struct plugin *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->back);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->turn);
}

bool plugin_is_hung(struct plugin *p)
{
    pthread_mutex_lock(&p->lock);
    bool hung = p->hung;
    pthread_mutex_unlock(&p->lock);
    return hung;
}

/* ---- out ---- */

/* Under lock. False if it was out before. */
static bool set_out(struct plugin *p, const struct yk_diag *text)
{
    bool first = !atomic_load(&p->out);
    if (first)
        p->lost = *text;
    atomic_store(&p->out, true);
    return first;
}

void plugin_take_out(struct backend *b, const char *fmt, ...)
{
    struct plugin *p = (struct plugin *)b;
    struct yk_diag text;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text.text, sizeof(text.text), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&p->lock);
    bool first = set_out(p, &text);
    pthread_mutex_unlock(&p->lock);
    if (first && !p->strict)
        log_error("backend %s (%s) is taken out: %s", p->name, p->path, text.text);
}

bool plugin_lost(struct backend *b, bool *hung, struct yk_diag *why)
{
    struct plugin *p = (struct plugin *)b;
    pthread_mutex_lock(&p->lock);
    bool out = atomic_load(&p->out);
    if (hung)
        *hung = p->hung;
    if (out && why)
        *why = p->lost;
    pthread_mutex_unlock(&p->lock);
    return out;
}

/* Under lock: nothing more is asked of it; its thread is left to itself. */
static yk_err quarantine(
    struct plugin *p, struct plugin_call *c, const char *what, int64_t limit_ms, struct yk_diag *why)
{
    struct yk_diag text;
    yk_fail(&text, YK_TIMEOUT, "%s did not come back within %lld ms: it is quarantined and never called again", what,
        (long long)limit_ms);
    p->hung = true;
    p->left = c;
    bool first = set_out(p, &text);
    pthread_detach(p->thread);
    if (first && !p->strict)
        log_error("backend %s (%s) is taken out: %s", p->name, p->path, text.text);
    return yk_fail(why, YK_TIMEOUT, "%s", text.text);
}

/* ---- calls ---- */

static struct timespec deadline_in(int64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Under lock: posts c unless the plug-in is hung. */
static bool post(struct plugin *p, struct plugin_call *c)
{
    if (p->hung)
        return false;
    p->call = c;
    pthread_cond_signal(&p->wake);
    return true;
}

static yk_err gone(struct plugin *p, struct yk_diag *why)
{
    return yk_fail(why, YK_STATE, "backend %s is quarantined: %s", p->name, p->lost.text);
}

static yk_err answer(
    const struct plugin *p, const char *what, enum yoke_status s, const char *text, struct yk_diag *why)
{
    if (s == YOKE_OK)
        return YK_OK;
    yk_err err = plugin_status(s);
    return yk_fail(why, err, "backend %s: %s: %s", p->name, what, text[0] ? text : yk_err_text(err));
}

yk_err plugin_do(struct plugin *p, struct plugin_call *c, int64_t limit_ms, struct yk_diag *why)
{
    struct timespec until = deadline_in(limit_ms);
    yk_err err = YK_OK;
    pthread_mutex_lock(&p->turn);
    pthread_mutex_lock(&p->lock);
    if (!post(p, c)) {
        err = gone(p, why);
    } else {
        while (!c->done && !err)
            if (pthread_cond_timedwait(&p->back, &p->lock, &until) == ETIMEDOUT && !c->done)
                err = quarantine(p, c, c->what, limit_ms, why);
    }
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->turn);
    return err ? err : answer(p, c->what, c->status, c->why, why);
}

struct plugin_ticket *plugin_ticket_take(struct plugin *p)
{
    pthread_mutex_lock(&p->lock);
    struct plugin_ticket *t = &p->tickets[p->next_ticket++ % PLUGIN_TICKETS];
    t->waiting = true;
    t->done = false;
    pthread_mutex_unlock(&p->lock);
    return t;
}

void plugin_done(void *arg, enum yoke_status status, const char *why)
{
    struct plugin_ticket *t = arg;
    struct plugin *p = t->plugin;
    pthread_mutex_lock(&p->lock);
    if (t->waiting) {
        t->waiting = false;
        t->done = true;
        t->status = status;
        snprintf(t->why, sizeof(t->why), "%s", why ? why : "");
        pthread_cond_broadcast(&p->back);
    }
    pthread_mutex_unlock(&p->lock);
}

static void call_cancel(struct plugin *p, struct plugin_call *c)
{
    p->api->cancel(p->state, c->handle);
}

yk_err plugin_wait(struct plugin *p, struct plugin_call *c, struct plugin_ticket *t, const atomic_bool *canceled,
    int64_t limit_ms, struct yk_diag *why)
{
    struct timespec until = deadline_in(limit_ms);
    struct plugin_call *cancel = NULL;
    yk_err err = YK_OK;
    pthread_mutex_lock(&p->turn);
    pthread_mutex_lock(&p->lock);
    if (!post(p, c))
        err = gone(p, why);
    while (!err && !(c->done && (t->done || c->status != YOKE_OK) && (!cancel || cancel->done))) {
        if (c->done && !t->done && !cancel && atomic_load(canceled)) {
            cancel = yk_xalloc(sizeof(*cancel));
            *cancel = (struct plugin_call){.fn = call_cancel, .what = "cancel", .handle = c->handle};
            post(p, cancel);
        }
        if (pthread_cond_timedwait(&p->back, &p->lock, &until) == ETIMEDOUT &&
            !(c->done && (t->done || c->status != YOKE_OK) && (!cancel || cancel->done)))
            err = quarantine(p, c,
                cancel && !cancel->done ? "cancel"
                : c->done               ? "the run (its done)"
                                        : c->what,
                limit_ms, why);
    }
    if (!err)
        t->waiting = false;
    if (!err && c->status == YOKE_OK)
        err = answer(p, "run", t->status, t->why, why);
    else if (!err)
        err = answer(p, c->what, c->status, c->why, why);
    if (!p->hung || (cancel && cancel->done))
        free(cancel);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->turn);
    return err;
}
