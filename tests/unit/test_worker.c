/* The worker on both nets: order, threads, closing with work in every state. */
#include "common/mailbox.h"
#include "common/worker.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    struct net *net;
    bool real;
    struct worker *w;
    pthread_t loop;
    int ran, done, order_errors, expected;
};

struct job {
    struct fixture *f;
    int number;
    bool ran;
    int sleep_us;
    bool on_loop;
};

static int setup_real(void **state)
{
    struct fixture *f = yk_xalloc(sizeof *f);
    f->real = true;
    assert_int_equal(net_nng_open(&f->net, NULL), YK_OK);
    f->loop = pthread_self();
    *state = f;
    return 0;
}

static int setup_mem(void **state)
{
    struct fixture *f = yk_xalloc(sizeof *f);
    assert_int_equal(net_mem_open(1, &f->net), YK_OK);
    f->loop = pthread_self();
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    net_close(f->net);
    free(f);
    return 0;
}

static void on_run(void *arg)
{
    struct job *j = arg;
    if (j->sleep_us && j->f->real)
        usleep((useconds_t)j->sleep_us);
    j->on_loop = pthread_equal(pthread_self(), j->f->loop);
    j->ran = true;
    j->f->ran++;
}

static void on_done(void *arg)
{
    struct job *j = arg;
    struct fixture *f = j->f;
    assert_true(pthread_equal(pthread_self(), f->loop));
    assert_true(j->ran);
    if (j->number != f->done++)
        f->order_errors++;
    if (f->done == f->expected)
        net_stop(f->net);
}

static void test_order(void **state)
{
    struct fixture *f = *state;
    struct job jobs[200];
    assert_int_equal(worker_open(f->net, "a-rather-long-name", true, &f->w, NULL), YK_OK);
    f->expected = 200;
    for (int i = 0; i < 200; i++) {
        jobs[i] = (struct job){.f = f, .number = i, .sleep_us = i % 50 == 0 ? 1000 : 0};
        worker_post(f->w, on_run, on_done, &jobs[i]);
    }
    assert_int_equal(worker_backlog(f->w), 200);
    assert_int_equal(f->done, 0); /* never inside the call */
    net_run(f->net);
    assert_int_equal(f->done, 200);
    assert_int_equal(f->order_errors, 0);
    assert_int_equal(worker_backlog(f->w), 0);
    for (int i = 0; i < 200; i++)
        assert_int_equal(jobs[i].on_loop, !f->real);
    worker_close(f->w);
}

static void test_close_finishes_work(void **state)
{
    struct fixture *f = *state;
    struct job jobs[20];
    assert_int_equal(worker_open(f->net, "w", true, &f->w, NULL), YK_OK);
    f->expected = -1;
    for (int i = 0; i < 20; i++) {
        jobs[i] = (struct job){.f = f, .number = i, .sleep_us = 500};
        worker_post(f->w, on_run, i % 3 == 2 ? NULL : on_done, &jobs[i]);
    }
    if (f->real)
        usleep(3000); /* some are done, one runs, some wait */
    worker_close(f->w);
    assert_int_equal(f->ran, 20);
    assert_int_equal(f->done, 14); /* without the six that have no callback */
    /* A wake-up may still be in the mailbox: it finds nobody. */
    net_timer(f->net, 1000, (net_fn)net_stop, f->net);
    net_run(f->net);
    assert_int_equal(f->done, 14);
}

static void on_done_close(void *arg)
{
    struct job *j = arg;
    worker_close(j->f->w);
    j->f->done++;
    net_stop(j->f->net);
}

static void test_close_from_done(void **state)
{
    struct fixture *f = *state;
    struct job a = {.f = f}, b = {.f = f};
    assert_int_equal(worker_open(f->net, "w", true, &f->w, NULL), YK_OK);
    worker_post(f->w, on_run, on_done_close, &a);
    worker_post(f->w, on_run, NULL, &b);
    net_run(f->net);
    assert_int_equal(f->done, 1);
    assert_true(a.ran && b.ran);
}

static void on_done_again(void *arg)
{
    struct job *j = arg;
    if (++j->f->done < 5)
        worker_post(j->f->w, on_run, on_done_again, j);
    else
        net_stop(j->f->net);
}

static void test_post_from_done(void **state)
{
    struct fixture *f = *state;
    struct job j = {.f = f};
    assert_int_equal(worker_open(f->net, "w", true, &f->w, NULL), YK_OK);
    worker_post(f->w, on_run, on_done_again, &j);
    net_run(f->net);
    assert_int_equal(f->ran, 5);
    worker_post(f->w, on_run, NULL, &j);
    f->done = 3;
    worker_post(f->w, on_run, on_done_again, &j); /* posts once more while it is being closed */
    worker_close(f->w);
    assert_int_equal(f->done, 5);
    assert_int_equal(f->ran, 8);
}

static void test_idle_close(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(worker_open(f->net, "w", i % 2, &f->w, NULL), YK_OK);
        worker_close(f->w);
    }
    worker_close(NULL);
}

/* ---- mailbox ---- */

static int calls;
static struct mailbox *box;

static void on_call(void *arg)
{
    calls++;
    if (arg)
        mailbox_post(box, on_call, NULL); /* runs next time, not now */
}

static void test_mailbox(void **state)
{
    (void)state;
    calls = 0;
    assert_int_equal(mailbox_open(&box), YK_OK);
    struct pollfd p = {.fd = mailbox_fd(box), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    mailbox_post(box, on_call, box);
    mailbox_post(box, on_call, box);
    assert_int_equal(poll(&p, 1, 0), 1);
    assert_int_equal(mailbox_run(box), 2);
    assert_int_equal(calls, 2);
    assert_int_equal(poll(&p, 1, 0), 1);
    assert_int_equal(mailbox_run(box), 2);
    assert_int_equal(mailbox_run(box), 0);
    assert_int_equal(poll(&p, 1, 0), 0);
    for (int i = 0; i < 100000; i++)
        mailbox_post(box, on_call, NULL);
    assert_int_equal(mailbox_run(box), 100000);
    assert_int_equal(calls, 100004);
    mailbox_post(box, on_call, NULL); /* dropped by close */
    mailbox_close(box);
    mailbox_close(NULL);
    assert_int_equal(calls, 100004);
}

#define BOTH(fn)                                    \
    {#fn " (nng)", fn, setup_real, teardown, NULL}, \
    {                                               \
#fn " (mem)", fn, setup_mem, teardown, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_order),
        BOTH(test_close_finishes_work),
        BOTH(test_close_from_done),
        BOTH(test_post_from_done),
        BOTH(test_idle_close),
        cmocka_unit_test(test_mailbox),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
