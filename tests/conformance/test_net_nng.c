/* What only the real net has: threads that post, sockets that misbehave, signals. */
#include "tests/conformance/net_fixture.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

struct poster {
    struct fixture *f;
    struct answer *done;
    int next[4], wrong, seen;
};
struct posted {
    struct poster *p;
    int thread, number;
};

static void on_posted(void *arg)
{
    struct posted *x = arg;
    if (x->number != x->p->next[x->thread]++)
        x->p->wrong++;
    if (++x->p->seen == 4 * 5000)
        on_flag(x->p->done);
    free(x);
}

static void *post_many(void *arg)
{
    struct posted *first = arg;
    for (int i = 0; i < 5000; i++) {
        struct posted *x = yk_xalloc(sizeof *x);
        *x = (struct posted){first->p, first->thread, i};
        net_post(first->p->f->net, on_posted, x);
    }
    return NULL;
}

static void test_post_from_threads(void **state)
{
    struct fixture *f = *state;
    struct answer done = {.f = f};
    struct poster p = {.f = f, .done = &done};
    struct posted start[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        start[i] = (struct posted){&p, i, 0};
        pthread_create(&threads[i], NULL, post_many, &start[i]);
    }
    wait_for(f, &done.there);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(p.seen, 20000);
    assert_int_equal(p.wrong, 0);
}

static int raw_socket(const char *url, bool connect_it)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (url)
        sa.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect_it)
        assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    else
        assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

/* A peer whose accept queue is full drops connection requests: the dial must end by its own clock. */
static void test_dial_timeout(void **state)
{
    struct fixture *f = *state;
    int fd = raw_socket(NULL, false);
    assert_int_equal(listen(fd, 0), 0);
    struct sockaddr_in sa;
    socklen_t len = sizeof sa;
    getsockname(fd, (struct sockaddr *)&sa, &len);
    int filler[4];
    for (int i = 0; i < 4; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!connect(filler[i], (struct sockaddr *)&sa, sizeof sa);
    }
    usleep(100000); /* a handshake may still be on its way on a busy machine */
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ntohs(sa.sin_port));
    struct net_conn *c = NULL;
    for (int i = 0; i < 15; i++) {
        int64_t start = net_now_us(f->net);
        assert_int_equal(dial(f, url, 50000, &c), YK_TIMEOUT);
        assert_in_range(net_now_us(f->net) - start, 45000, 3000000);
    }
    for (int i = 0; i < 4; i++)
        close(filler[i]);
    close(fd);
}

static void on_accept_read(void *arg, struct net_conn *conn);
struct visitor {
    struct fixture *f;
    struct net_conn *conn;
    uint8_t buf[4096];
};

static void on_visitor(void *arg, yk_err err, size_t bytes)
{
    struct visitor *v = arg;
    (void)bytes;
    if (!err) {
        net_recv(v->conn, v->buf, sizeof v->buf, on_visitor, v);
        return;
    }
    net_conn_close(v->conn);
    v->f->n_accepted++;
    net_stop(v->f->net);
    free(v);
}

static void on_accept_read(void *arg, struct net_conn *conn)
{
    struct visitor *v = yk_xalloc(sizeof *v);
    v->f = arg;
    v->conn = conn;
    net_recv(conn, v->buf, sizeof v->buf, on_visitor, v);
}

static long resident_kib(void)
{
    long pages = 0, rss = 0;
    FILE *s = fopen("/proc/self/statm", "re");
    assert_non_null(s);
    assert_int_equal(fscanf(s, "%ld %ld", &pages, &rss), 2);
    fclose(s);
    return rss * (sysconf(_SC_PAGESIZE) / 1024);
}

static int open_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) != -1;
    return n;
}

static void visit(struct fixture *f, const char *url, int times)
{
    f->n_accepted = 0;
    for (int i = 0; i < times; i++) {
        int fd = raw_socket(url, true);
        if (i % 3)
            (void)!write(fd, "YOK1 and then nothing", (size_t)(i % 20) + 1);
        if (i % 5 == 0) { /* a reset instead of an orderly end */
            struct linger hard = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        }
        close(fd);
        struct net_timer *late = net_timer(f->net, 20000000, on_late, NULL);
        while (f->n_accepted <= i)
            net_run(f->net);
        net_timer_cancel(late);
    }
}

static void test_visitors_leave_nothing(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = NULL;
    assert_int_equal(net_listen(f->net, f->url, on_accept_read, f, &l, NULL), YK_OK);
    visit(f, net_listener_url(l), 300);
    let_pass(f, 50000);
    int fds = open_fds();
    long before = resident_kib();
    visit(f, net_listener_url(l), 2000);
    let_pass(f, 50000);
    assert_true(open_fds() <= fds + 1);                             /* nng reaps the last one in its own time */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which keep freed memory on purpose */
    assert_true(resident_kib() - before < 512);
#endif
    (void)before;
    net_listener_close(l);
}

/* Out of descriptors: nobody is accepted, the loop does not spin, and it goes on when there are some again. */
static void test_out_of_descriptors(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    sa.sin_port = htons((uint16_t)atoi(strrchr(net_listener_url(l), ':') + 1));
    let_pass(f, 20000); /* what earlier cases left is reaped */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct rlimit was, tight;
    getrlimit(RLIMIT_NOFILE, &was);
    tight = was;
    tight.rlim_cur = (rlim_t)fd + 1; /* the lowest free number is beyond it: all below are taken */
    for (int k = 0; k < fd; k++)
        assert_int_not_equal(fcntl(k, F_GETFD), -1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    let_pass(f, 300000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    setrlimit(RLIMIT_NOFILE, &was);
    assert_int_equal(f->n_accepted, 0);
    double cpu_s = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
    assert_true(cpu_s < 0.15);
    for (int i = 0; i < 100 && f->n_accepted == 0; i++)
        let_pass(f, 50000);
    assert_int_equal(f->n_accepted, 1);
    net_conn_close(f->accepted[0]);
    close(fd);
    net_listener_close(l);
}

static void test_names_and_ipv6(void **state)
{
    struct fixture *f = *state;
    static const char *const urls[] = {"tcp://localhost:0", "tcp://[::1]:0", "tcp://0.0.0.0:0"};
    for (size_t i = 0; i < YK_COUNT(urls); i++) {
        struct net_listener *l = NULL;
        struct net_conn *a, *b;
        struct yk_diag why = {{0}};
        yk_err err = net_listen(f->net, urls[i], on_accept, f, &l, &why);
        if (err && i == 1)
            continue; /* a machine without IPv6 */
        if (err)
            fail_msg("%s", why.text);
        f->n_accepted = 0;
        connect_both(f, l, &a, &b);
        assert_non_null(strchr(net_peer(b), ':'));
        net_conn_close(a);
        net_conn_close(b);
        net_listener_close(l);
    }
    struct net_listener *l = NULL;
    struct yk_diag why = {{0}};
    assert_int_not_equal(net_listen(f->net, "tcp://192.0.2.1:0", on_accept, f, &l, &why), YK_OK);
    assert_non_null(strstr(why.text, "192.0.2.1"));
}

static void test_signal(void **state)
{
    struct fixture *f = *state;
    struct answer a = {.f = f};
    assert_int_equal(net_nng_on_signal(f->net, SIGUSR1, on_flag, &a), YK_OK);
    raise(SIGUSR1);
    wait_for(f, &a.there);
}

static void on_dial_never(void *arg, yk_err err, struct net_conn *conn)
{
    (void)arg;
    (void)err;
    (void)conn;
    fail_msg("a dial answered while the net was closing");
}

static void test_close_while_dialling(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    for (int i = 0; i < 5; i++)
        net_dial(f->net, net_listener_url(l), 1000000, on_dial_never, NULL);
    usleep(20000);
    net_listener_close(l); /* teardown closes the net with answers in the mailbox */
}

int main(void)
{
    signal(SIGPIPE, SIG_DFL); /* a peer that is gone must not kill the process */
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        NET_REAL(test_post_from_threads),
        NET_REAL(test_dial_timeout),
        NET_REAL(test_visitors_leave_nothing),
        NET_REAL(test_out_of_descriptors),
        NET_REAL(test_names_and_ipv6),
        NET_REAL(test_signal),
        NET_REAL(test_close_while_dialling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
