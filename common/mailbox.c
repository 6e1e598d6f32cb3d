#include "common/mailbox.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A queue that once grew past this is given back when it is empty, so that a burst does not keep its memory. */
#define MAILBOX_KEEP 1024

struct call {
    void (*fn)(void *);
    void *arg;
};

struct calls {
    struct call *at;
    size_t n, cap;
};

struct mailbox {
    pthread_mutex_t lock;
    struct calls in;  /* under the lock */
    struct calls out; /* the loop thread's: being run */
    int fd;
};

yk_err mailbox_open(struct mailbox **out)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return yk_err_from_errno(errno);
    struct mailbox *m = yk_xalloc(sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    m->fd = fd;
    *out = m;
    return YK_OK;
}

int mailbox_fd(const struct mailbox *m)
{
    return m->fd;
}

void mailbox_post(struct mailbox *m, void (*fn)(void *), void *arg)
{
    pthread_mutex_lock(&m->lock);
    bool was_empty = m->in.n == 0;
    if (m->in.n == m->in.cap) {
        m->in.cap = m->in.cap ? m->in.cap * 2 : 64;
        m->in.at = yk_xrealloc(m->in.at, m->in.cap * sizeof *m->in.at);
    }
    m->in.at[m->in.n++] = (struct call){fn, arg};
    pthread_mutex_unlock(&m->lock);
    if (was_empty) {
        uint64_t one = 1;
        while (write(m->fd, &one, sizeof one) < 0 && errno == EINTR) {}
    }
}

int mailbox_run(struct mailbox *m)
{
    uint64_t count;
    while (read(m->fd, &count, sizeof count) < 0 && errno == EINTR) {}
    /* Read before the swap: a post that comes between finds a queue that is not empty, and is taken by the swap; a post
     * after the swap finds it empty and writes again. */
    pthread_mutex_lock(&m->lock);
    struct calls batch = m->in;
    m->in = m->out;
    m->in.n = 0;
    m->out = (struct calls){0};
    pthread_mutex_unlock(&m->lock);
    for (size_t i = 0; i < batch.n; i++)
        batch.at[i].fn(batch.at[i].arg);
    int n = (int)batch.n;
    if (batch.cap > MAILBOX_KEEP) {
        free(batch.at);
        batch = (struct calls){0};
    }
    batch.n = 0;
    m->out = batch;
    return n;
}

void mailbox_close(struct mailbox *m)
{
    if (!m)
        return;
    close(m->fd);
    pthread_mutex_destroy(&m->lock);
    free(m->in.at);
    free(m->out.at);
    free(m);
}
