/* One hop between two processes over net_nng: half of a round trip of 1 KiB, loop to loop. Every answer is compared.
 * Also the rate of one direction in sends of 256 KiB, and what an idle listening process keeps resident. */
#include "common/net.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 1024
#define WARM 500
#define ROUNDS 20000
#define BULK ((size_t)256 * 1024)
#define BULK_SENDS 8000

struct side {
    struct net *net;
    struct net_conn *conn;
    uint8_t out[BYTES], in[BYTES];
    size_t got;
    int rounds;
    int open; /* of the two operations of a round */
    int64_t start_us;
    double *us;
    uint8_t *bulk;
    int64_t bulk_got;
};

static void die(const char *what, yk_err err)
{
    fprintf(stderr, "hop: %s: %s\n", what, yk_err_text(err));
    exit(1);
}

static void check_io(yk_err err)
{
    if (err)
        die("stream", err);
}

/* ---- the other process: sends back what comes, then swallows ---- */

static void echo_recv(struct side *s);

static void on_swallowed(void *arg, yk_err err, size_t n)
{
    struct side *s = arg;
    if (err) {
        net_stop(s->net);
        return;
    }
    s->bulk_got += (int64_t)n;
    if (s->bulk_got == (int64_t)BULK * BULK_SENDS) {
        net_send(s->conn, &(struct net_iov){"k", 1}, 1, on_swallowed, s);
        s->bulk_got = INT64_MIN;
    } else if (s->bulk_got > 0) {
        net_recv(s->conn, s->bulk, BULK, on_swallowed, s);
    } else {
        net_recv(s->conn, s->in, 1, on_swallowed, s); /* the end */
    }
}

static void on_echoed(void *arg, yk_err err, size_t n)
{
    (void)n;
    check_io(err);
    echo_recv(arg);
}

static void on_echo_in(void *arg, yk_err err, size_t n)
{
    struct side *s = arg;
    check_io(err);
    s->got += n;
    if (s->got < BYTES) {
        echo_recv(s);
        return;
    }
    s->got = 0;
    if (++s->rounds == WARM + ROUNDS) {
        net_recv(s->conn, s->bulk, BULK, on_swallowed, s);
        net_send(s->conn, &(struct net_iov){s->in, BYTES}, 1, on_echoed, s);
        return;
    }
    net_send(s->conn, &(struct net_iov){s->in, BYTES}, 1, on_echoed, s);
}

static void echo_recv(struct side *s)
{
    if (s->rounds < WARM + ROUNDS)
        net_recv(s->conn, s->in + s->got, BYTES - s->got, on_echo_in, s);
}

static void on_accept(void *arg, struct net_conn *c)
{
    struct side *s = arg;
    s->conn = c;
    echo_recv(s);
}

static long resident_kib(void)
{
    long pages = 0, rss = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f || fscanf(f, "%ld %ld", &pages, &rss) != 2)
        rss = 0;
    if (f)
        fclose(f);
    return rss * (sysconf(_SC_PAGESIZE) / 1024);
}

static int threads(void)
{
    char line[128];
    int n = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Threads: %d", &n) == 1)
            break;
    if (f)
        fclose(f);
    return n;
}

static void serve(int fd)
{
    struct side s = {.bulk = malloc(BULK)};
    struct net_listener *l;
    struct yk_diag why = {{0}};
    yk_err err = net_nng_open(&s.net, &why);
    if (!err)
        err = net_listen(s.net, "tcp://127.0.0.1:0", on_accept, &s, &l, &why);
    if (err)
        die(why.text, err);
    char hello[256];
    int n = snprintf(hello, sizeof hello, "%s %ld %d\n", net_listener_url(l), resident_kib(), threads());
    if (write(fd, hello, (size_t)n) != n)
        exit(1);
    close(fd);
    net_run(s.net);
    net_conn_close(s.conn);
    net_listener_close(l);
    net_close(s.net);
    free(s.bulk);
    exit(0);
}

/* ---- this process: measures ---- */

static void next_round(struct side *s);

static void one_less(struct side *s)
{
    if (--s->open)
        return;
    if (s->rounds == WARM + ROUNDS)
        net_stop(s->net);
    else
        next_round(s);
}

static void on_sent(void *arg, yk_err err, size_t n)
{
    (void)n;
    check_io(err);
    one_less(arg);
}

static void on_back(void *arg, yk_err err, size_t n)
{
    struct side *s = arg;
    check_io(err);
    s->got += n;
    if (s->got < BYTES) {
        net_recv(s->conn, s->in + s->got, BYTES - s->got, on_back, s);
        return;
    }
    int64_t now = net_now_us(s->net);
    if (memcmp(s->in, s->out, BYTES) != 0)
        die("the answer differs", YK_FORMAT);
    if (s->rounds >= WARM)
        s->us[s->rounds - WARM] = (double)(now - s->start_us) / 2;
    s->rounds++;
    one_less(s);
}

static void next_round(struct side *s)
{
    s->got = 0;
    s->open = 2;
    s->out[0] = (uint8_t)s->rounds;
    s->start_us = net_now_us(s->net);
    net_recv(s->conn, s->in, BYTES, on_back, s);
    net_send(s->conn, &(struct net_iov){s->out, BYTES}, 1, on_sent, s);
}

static void on_bulk_sent(void *arg, yk_err err, size_t n)
{
    struct side *s = arg;
    (void)n;
    check_io(err);
    if (++s->rounds < BULK_SENDS)
        net_send(s->conn, &(struct net_iov){s->bulk, BULK}, 1, on_bulk_sent, s);
}

static void on_bulk_end(void *arg, yk_err err, size_t n)
{
    (void)n;
    check_io(err);
    net_stop(((struct side *)arg)->net);
}

static void on_dial(void *arg, yk_err err, struct net_conn *c)
{
    struct side *s = arg;
    if (err)
        die("dial", err);
    s->conn = c;
    next_round(s);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(void)
{
    int pipe_fd[2];
    if (pipe(pipe_fd) != 0)
        return 1;
    pid_t child = fork(); /* before nng starts its threads */
    if (child < 0)
        return 1;
    if (child == 0) {
        close(pipe_fd[0]);
        serve(pipe_fd[1]);
    }
    close(pipe_fd[1]);
    FILE *in = fdopen(pipe_fd[0], "r");
    char url[128];
    long rss_kib;
    int n_threads;
    if (!in || fscanf(in, "%127s %ld %d", url, &rss_kib, &n_threads) != 3)
        return 1;
    fclose(in);
    struct side s = {.us = malloc(ROUNDS * sizeof(double)), .bulk = calloc(1, BULK)};
    yk_err err = net_nng_open(&s.net, NULL);
    if (err)
        die("net", err);
    for (int i = 0; i < BYTES; i++)
        s.out[i] = (uint8_t)(i * 7);
    net_dial(s.net, url, 5000000, on_dial, &s);
    net_run(s.net);
    qsort(s.us, ROUNDS, sizeof(double), by_value);
    printf("hop bytes=%d median_us=%.1f p99_us=%.1f\n", BYTES, s.us[ROUNDS / 2], s.us[ROUNDS * 99 / 100]);
    s.rounds = 0;
    int64_t start = net_now_us(s.net);
    net_recv(s.conn, s.in, 1, on_bulk_end, &s);
    net_send(s.conn, &(struct net_iov){s.bulk, BULK}, 1, on_bulk_sent, &s);
    net_run(s.net);
    double us = (double)(net_now_us(s.net) - start);
    printf("stream send_bytes=%zu gb_per_s=%.2f\n", BULK, (double)BULK * BULK_SENDS / us * 1e-3);
    printf("idle threads=%d resident_kib=%ld\n", n_threads, rss_kib);
    net_conn_close(s.conn);
    net_close(s.net);
    free(s.us);
    free(s.bulk);
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0;
}
