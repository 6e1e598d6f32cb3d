/* A task goes queue -> run -> done list -> done callback. The loop hears of the done list through net_post with a
 * `port` that outlives the worker: a wake-up that is still in the mailbox when the worker closes finds it empty. */
#include "common/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct task {
    struct task *next;
    net_fn run, done;
    void *arg;
};

struct list {
    struct task *first, **end;
};

struct port {
    struct worker *worker; /* NULL after worker_close */
    int posts;             /* wake-ups that have not arrived; under `ports_lock` */
    struct port *next;     /* of the retired ones */
};

struct worker {
    struct net *net;
    struct port *port;
    bool threaded;
    int backlog; /* loop thread */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct list queue, done; /* under the lock */
    bool closing;            /* under the lock */
};

/* Ports that wait for their last wake-up stay reachable from here; a loop that never runs again keeps a few bytes. */
static pthread_mutex_t ports_lock = PTHREAD_MUTEX_INITIALIZER;
static struct port *retired;

static void list_add(struct list *l, struct task *t)
{
    t->next = NULL;
    if (l->first)
        *l->end = t;
    else
        l->first = t;
    l->end = &t->next;
}

static struct task *list_take(struct list *l)
{
    struct task *t = l->first;
    if (t)
        l->first = t->next;
    return t;
}

static struct task *take(struct worker *w, struct list *l)
{
    pthread_mutex_lock(&w->lock);
    struct task *t = list_take(l);
    pthread_mutex_unlock(&w->lock);
    return t;
}

static void finish(struct worker *w, struct task *t)
{
    w->backlog--;
    struct task copy = *t;
    free(t);
    if (copy.done)
        copy.done(copy.arg); /* may close the worker */
}

static void wake(struct worker *w);

/* What the thread finished, or one step of a task if there is no thread. */
static void work(struct port *p)
{
    struct worker *w = p->worker;
    struct task *t;
    if (!w)
        return;
    if (w->threaded) {
        while (p->worker && (t = take(w, &w->done)) != NULL)
            finish(w, t);
    } else if ((t = list_take(&w->done)) != NULL) {
        finish(w, t);
    } else if ((t = list_take(&w->queue)) != NULL) {
        t->run(t->arg);
        list_add(&w->done, t);
        wake(w);
    }
}

/* On the loop. The wake-up counts until its end, so that a worker_close in a callback leaves the port alone. */
static void on_wake(void *arg)
{
    struct port *p = arg;
    work(p);
    pthread_mutex_lock(&ports_lock);
    bool end = --p->posts == 0 && !p->worker;
    if (end) {
        struct port **at = &retired;
        while (*at != p)
            at = &(*at)->next;
        *at = p->next;
    }
    pthread_mutex_unlock(&ports_lock);
    if (end)
        free(p);
}

static void wake(struct worker *w)
{
    pthread_mutex_lock(&ports_lock);
    w->port->posts++;
    pthread_mutex_unlock(&ports_lock);
    net_post(w->net, on_wake, w->port);
}

static void *thread_main(void *arg)
{
    struct worker *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct task *t = list_take(&w->queue);
        if (!t) {
            if (w->closing)
                break;
            pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        t->run(t->arg);
        pthread_mutex_lock(&w->lock);
        bool was_empty = w->done.first == NULL;
        list_add(&w->done, t);
        if (was_empty && !w->closing) {
            pthread_mutex_unlock(&w->lock);
            wake(w);
            pthread_mutex_lock(&w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

yk_err worker_open(struct net *net, const char *name, bool threaded, struct worker **out, struct yk_diag *why)
{
    struct worker *w = yk_xalloc(sizeof *w);
    w->net = net;
    w->threaded = threaded && strcmp(net->ops->name, "mem") != 0;
    w->port = yk_xalloc(sizeof *w->port);
    w->port->worker = w;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    if (w->threaded) {
        int e = pthread_create(&w->thread, NULL, thread_main, w);
        if (e) {
            pthread_cond_destroy(&w->more);
            pthread_mutex_destroy(&w->lock);
            free(w->port);
            free(w);
            return yk_fail(why, yk_err_from_errno(e), "cannot start thread '%s': %s", name, strerror(e));
        }
        char shown[16]; /* the kernel's limit */
        strncpy(shown, name, sizeof shown - 1);
        shown[sizeof shown - 1] = 0;
        pthread_setname_np(w->thread, shown);
    }
    *out = w;
    return YK_OK;
}

void worker_post(struct worker *w, net_fn run, net_fn done, void *arg)
{
    struct task *t = yk_xalloc(sizeof *t);
    t->run = run;
    t->done = done;
    t->arg = arg;
    w->backlog++;
    pthread_mutex_lock(&w->lock);
    list_add(&w->queue, t);
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    if (!w->threaded)
        wake(w);
}

int worker_backlog(const struct worker *w)
{
    return w->backlog;
}

void worker_close(struct worker *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    if (w->threaded)
        pthread_join(w->thread, NULL);
    /* From here on there is one thread. A done callback may still post: that runs here, too. */
    w->threaded = false;
    struct task *t;
    for (;;) {
        while ((t = list_take(&w->done)) != NULL)
            finish(w, t);
        if ((t = list_take(&w->queue)) == NULL)
            break;
        t->run(t->arg);
        list_add(&w->done, t);
    }
    struct port *p = w->port;
    pthread_mutex_lock(&ports_lock);
    p->worker = NULL;
    bool end = p->posts == 0;
    if (!end) {
        p->next = retired;
        retired = p;
    }
    pthread_mutex_unlock(&ports_lock);
    if (end)
        free(p);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
