/* yoked: reads its configuration, opens the scheduler and REST, and keeps --local-agents running. */
#include "common/conf.h"
#include "common/log.h"
#include "common/net_url.h"
#include "kernels/fold.h"
#include "scheduler/rest.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct options {
    char *db, *rest, *listen, *log_file;
    int64_t local_agents, lease_ms, source_wait_ms;
    int log_level;
    struct conf_strs data_roots;
    struct policy policy;
};

#define KEY(name, kind, otherwise, lo, hi, help, field, choices, value)                      \
    {                                                                                        \
        name, kind, otherwise, lo, hi, help, offsetof(struct options, field), choices, value \
    }
static const struct conf_key keys[] = {
    KEY("db", CONF_STR, NULL, 0, 0,
        "The database; models and outputs stand beside it (default: $STATE_DIRECTORY/yoke.db, else "
        "$XDG_STATE_HOME/yoke/yoke.db, else ~/.local/state/yoke/yoke.db).",
        db, NULL, "FILE"),
    KEY("rest", CONF_STR, "http://127.0.0.1:7711", 0, 0, "Where REST answers; loopback only.", rest, NULL, "URL"),
    KEY("listen", CONF_STR, "tcp://127.0.0.1:7712", 0, 0, "Where agents join; loopback only while there is no TLS.",
        listen, NULL, "URL"),
    KEY("local-agents", CONF_I64, "0", 0, 64, "Agents to run on this machine as child processes.", local_agents, NULL,
        "N"),
    KEY("data-root", CONF_STRS, NULL, 0, 0, "A folder that the local agents serve data sets from.", data_roots, NULL,
        "DIR"),
    KEY("lease-ms", CONF_DURATION_MS, "6000", 500, 600000, "How long a silent agent is believed alive.", lease_ms, NULL,
        NULL),
    KEY("source-wait-ms", CONF_DURATION_MS, "60000", 100, 86400000, "How long a job waits for agents that went away.",
        source_wait_ms, NULL, NULL),
    /* Devices that are spared, jobs that move, checkpoint sets (policy.h). */
    KEY("hot-celsius", CONF_F64, "0", 0, 200,
        "A device rests from this temperature on; 0: only where it calls its heat serious or critical.",
        policy.hot_celsius, NULL, "DEGREES"),
    KEY("warm-celsius", CONF_F64, "5", 0, 200, "So far below hot-celsius a device's share begins to shrink.",
        policy.warm_celsius, NULL, "DEGREES"),
    KEY("cool-celsius", CONF_F64, "3", 0, 200, "So far below a limit of heat a device has to be to have left it.",
        policy.cool_celsius, NULL, "DEGREES"),
    KEY("warm-share", CONF_F64, "0.5", 0, 1, "What of the speed of a device is counted while it is warm.",
        policy.warm_share, NULL, "FRACTION"),
    KEY("battery-floor", CONF_F64, "0.2", 0, 1, "A device rests while its battery is below.", policy.battery_floor,
        NULL, "FRACTION"),
    KEY("battery-rise", CONF_F64, "0.05", 0, 1, "So far above a limit a battery has to be to have left it.",
        policy.battery_rise, NULL, "FRACTION"),
    KEY("battery-loss", CONF_F64, "0.02", 0, 1,
        "A device's share shrinks once its battery has lost this while it is charging, and it rests at twice that; 0: "
        "never.",
        policy.battery_loss, NULL, "FRACTION"),
    KEY("hold-off-ms", CONF_DURATION_MS, "60000", 1, 86400000,
        "How long a device is spared at least, and used at least before it is spared again.", policy.hold_ms, NULL,
        NULL),
    KEY("dwell-ms", CONF_DURATION_MS, "30000", 0, 86400000,
        "How long a plan runs at least before a better one is looked for.", policy.dwell_ms, NULL, NULL),
    KEY("move-gain", CONF_F64, "0.1", 0, 1, "What of a step's time another plan has to gain before a job moves to it.",
        policy.move_gain, NULL, "FRACTION"),
    KEY("rest-wait-ms", CONF_DURATION_MS, "3600000", 100, 864000000, "How long a job waits for devices that rest.",
        policy.rest_ms, NULL, NULL),
    KEY("mtbf-ms", CONF_DURATION_MS, "3600000", 1000, 8640000000,
        "How long an agent is expected to stay, before it was seen to: what the interval of checkpoint sets follows "
        "from.",
        policy.mtbf_ms, NULL, NULL),
    KEY("set-share", CONF_F64, "0.05", 0, 1, "What of a link checkpoint sets may take.", policy.set_share, NULL,
        "FRACTION"),
    KEY("set-min-ms", CONF_DURATION_MS, "5000", 0, 86400000, "The shortest interval of checkpoint sets.",
        policy.set_min_ms, NULL, NULL),
    KEY("set-max-ms", CONF_DURATION_MS, "300000", 1, 86400000,
        "The longest interval of checkpoint sets, unless links ask for more.", policy.set_max_ms, NULL, NULL),
    KEY("log-level", CONF_ENUM, "info", 0, 0, "What is logged.", log_level, "error|warn|info|debug", NULL),
    KEY("log-file", CONF_STR, NULL, 0, 0, "Where to (default: standard error).", log_file, NULL, "FILE"),
};
static const struct conf_table table = {
    "yoked", "usage: yoked [flags]\nThe scheduler of a fleet of yoke-agents.\n", keys, (int)YK_COUNT(keys), NULL};

/* ---- local agents ---- */

#define RESTART_MIN_US 200000
#define RESTART_MAX_US 10000000
#define STOP_MS 5000

struct child {
    struct daemon *daemon;
    int number;
    pid_t pid; /* 0: not running */
    int64_t started_us, pause_us;
    struct net_timer *timer;
};

struct daemon {
    struct net *net;
    struct sched *sched;
    struct options *o;
    char agent_path[PATH_MAX], *state_dir;
    struct child *children;
    struct rest *rest;
    int64_t started_us;
    bool stopping;
};

/* Like posix_spawn, but the child ends with us however we end: a successor starts its own under the same identities. */
static int spawn_child(const char *path, char **argv, pid_t *pid)
{
    pid_t self = getpid();
    pid_t child = fork();
    if (child < 0)
        return errno;
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != self) /* we were gone before that */
            _exit(0);
        execv(path, argv);
        _exit(127);
    }
    *pid = child;
    return 0;
}

static void child_start(void *arg)
{
    struct child *c = arg;
    struct daemon *d = c->daemon;
    char *argv[16], *own[5];
    int n = 0, k = 0;
    c->timer = NULL;
    own[k++] = yk_xasprintf("--scheduler=%s", sched_url(d->sched));
    own[k++] = yk_xasprintf("--name=local-%d", c->number);
    own[k++] = yk_xasprintf("--state=%s/local-%d", d->state_dir, c->number);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long share = YK_MAX(cores / (long)YK_MAX(d->o->local_agents, (int64_t)1), 1L);
    own[k++] = yk_xasprintf("--threads=%ld", share);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    own[k++] = yk_xasprintf("--memory=%lld", (long long)pages * page * 3 / 4 / (long long)d->o->local_agents);
    argv[n++] = d->agent_path;
    for (int i = 0; i < k; i++)
        argv[n++] = own[i];
    char *roots[8] = {0};
    for (int i = 0; i < d->o->data_roots.n && i < 8; i++)
        argv[n++] = roots[i] = yk_xasprintf("--data-root=%s", d->o->data_roots.at[i]);
    argv[n] = NULL;
    int code = access(d->agent_path, X_OK) == 0 ? spawn_child(d->agent_path, argv, &c->pid) : errno;
    c->started_us = net_now_us(d->net);
    if (code) {
        c->pid = 0;
        c->pause_us = YK_MIN(YK_MAX(2 * c->pause_us, RESTART_MIN_US), RESTART_MAX_US);
        log_error("cannot start %s: %s", d->agent_path, strerror(code));
        c->timer = net_timer(d->net, c->pause_us, child_start, c);
    }
    for (int i = 0; i < k; i++)
        free(own[i]);
    for (int i = 0; i < 8; i++)
        free(roots[i]);
}

static void on_child(void *arg)
{
    struct daemon *d = arg;
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int64_t i = 0; i < d->o->local_agents; i++) {
            struct child *c = &d->children[i];
            if (c->pid != pid)
                continue;
            c->pid = 0;
            if (d->stopping)
                continue;
            bool lived = net_now_us(d->net) - c->started_us > 30000000;
            c->pause_us = lived ? RESTART_MIN_US : YK_MIN(YK_MAX(2 * c->pause_us, RESTART_MIN_US), RESTART_MAX_US);
            log_warn("local agent %d ended (%s %d); it starts again in %lld ms", c->number,
                WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), (long long)c->pause_us / 1000);
            c->timer = net_timer(d->net, c->pause_us, child_start, c);
        }
}

static void start_children(struct daemon *d)
{
    d->children = yk_xalloc(((size_t)d->o->local_agents + 1) * sizeof *d->children);
    ssize_t n = readlink("/proc/self/exe", d->agent_path, sizeof d->agent_path - 16);
    char *slash = n > 0 ? strrchr(d->agent_path, '/') : NULL;
    snprintf(slash ? slash + 1 : d->agent_path, 16, "yoke-agent");
    for (int64_t i = 0; i < d->o->local_agents; i++) {
        d->children[i] = (struct child){.daemon = d, .number = (int)i + 1};
        child_start(&d->children[i]);
    }
}

/* Waits for a child that was told to end; one that does not is killed. */
static void await_child(pid_t pid)
{
    for (int i = 0; i < STOP_MS / 20; i++) {
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    log_warn("local agent with process %ld does not end: killed", (long)pid);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void stop_children(struct daemon *d)
{
    for (int64_t i = 0; i < d->o->local_agents; i++) {
        net_timer_cancel(d->children[i].timer);
        if (d->children[i].pid > 0)
            kill(d->children[i].pid, SIGTERM);
    }
    for (int64_t i = 0; i < d->o->local_agents; i++)
        if (d->children[i].pid > 0)
            await_child(d->children[i].pid);
    free(d->children);
}

/* ---- the daemon ---- */

#define READY_US 10000000
#define READY_STEP_US 20000

static void on_stop(void *arg)
{
    struct daemon *d = arg;
    d->stopping = true;
    log_info("stopping");
    net_stop(d->net);
}

/* Where systemd, the desktop or the home says state goes. */
static char *default_db(void)
{
    const char *dir = getenv("STATE_DIRECTORY"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (dir && dir[0])
        return yk_xasprintf("%s/yoke.db", dir);
    if (xdg && xdg[0])
        return yk_xasprintf("%s/yoke/yoke.db", xdg);
    if (home && home[0])
        return yk_xasprintf("%s/.local/state/yoke/yoke.db", home);
    return NULL;
}

/* Folders of the path above the last one, as `mkdir -p` does; sched_open makes the last. */
static void make_parents(const char *path)
{
    char *copy = yk_xstrdup(path);
    for (char *p = copy + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            mkdir(copy, 0700);
            *p = '/';
        }
    free(copy);
}

/* Ready means that a job can come: the local agents are there, or have had their time. */
static void say_ready(void *arg)
{
    struct daemon *d = arg;
    bool here = fleet_alive(sched_fleet(d->sched)) >= d->o->local_agents;
    if (!here && net_now_us(d->net) - d->started_us < READY_US) {
        net_timer(d->net, READY_STEP_US, say_ready, d);
        return;
    }
    printf("ready rest=%s listen=%s\n", rest_url(d->rest), sched_url(d->sched));
    fflush(stdout);
}

/* What can be told of the flags before anything is done. */
static yk_err check_flags(const struct options *o, struct yk_diag *why)
{
    if (o->db && !o->db[0])
        return yk_fail(why, YK_INVAL, "--db= is empty");
    if (o->log_file && !o->log_file[0])
        return yk_fail(why, YK_INVAL, "--log-file= is empty");
    if (o->data_roots.n && !o->local_agents)
        return yk_fail(why, YK_INVAL, "--data-root is for local agents: give --local-agents=N too");
    for (int i = 0; i < o->data_roots.n; i++)
        if (access(o->data_roots.at[i], R_OK | X_OK) != 0)
            return yk_fail(why, YK_INVAL, "--data-root=%s: %s", o->data_roots.at[i], strerror(errno));
    yk_err err = net_url_check("listen", "tcp", o->listen, why);
    return err ? err : net_url_check("rest", "http", o->rest, why);
}

static int serve(struct options *o)
{
    struct yk_diag why = {0};
    struct daemon d = {.o = o};
    struct rest *rest = NULL;
    char *db = o->db ? yk_xstrdup(o->db) : default_db();
    yk_err err = YK_OK;
    if (!db)
        err = yk_fail(&why, YK_NOTFOUND, "there is no home and no state directory: give --db=FILE");
    if (!err) {
        if (!o->db)
            make_parents(db);
        err = net_nng_open(&d.net, &why);
    }
    struct sched_config c = {.net = d.net,
        .db = db,
        .listen_url = o->listen,
        .threaded = true,
        .lease_ms = o->lease_ms,
        .source_wait_ms = o->source_wait_ms,
        .policy = o->policy,
        .eval = fold_eval};
    if (!err)
        err = sched_open(&c, &d.sched, &why);
    if (!err)
        err = rest_open(d.net, o->rest, d.sched, &rest, &why);
    if (!err) {
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* a write past a size limit is an error like a full disk */
        net_nng_on_signal(d.net, SIGTERM, on_stop, &d);
        net_nng_on_signal(d.net, SIGINT, on_stop, &d);
        net_nng_on_signal(d.net, SIGCHLD, on_child, &d);
        char *slash = strrchr(db, '/');
        d.state_dir = slash ? yk_xasprintf("%.*s/agents", (int)(slash - db), db) : yk_xstrdup("agents");
        if (o->local_agents)
            mkdir(d.state_dir, 0700);
        start_children(&d);
        d.rest = rest;
        d.started_us = net_now_us(d.net);
        say_ready(&d);
        log_info("term %lld, database %s", (long long)store_term(sched_store(d.sched)), db);
        net_run(d.net);
        stop_children(&d);
    } else {
        fprintf(stderr, "yoked: %s\n", why.text);
    }
    rest_close(rest);
    sched_close(d.sched);
    net_close(d.net);
    free(d.state_dir);
    free(db);
    return err ? 1 : 0;
}

int main(int argc, char **argv)
{
    struct options o;
    struct conf_args args;
    struct yk_diag why = {0};
    int code = 0;
    mallopt(M_MMAP_THRESHOLD, 1 << 18); /* what is large goes back to the system when it is freed */
    if (conf_parse(&table, argc, argv, &o, &args, &why)) {
        fprintf(stderr, "yoked: %s\n", why.text);
        return 2;
    }
    if (args.help) {
        conf_help(&table, stdout);
    } else if (args.version) {
        printf("yoked %s\n", YOKE_VERSION);
    } else if (args.print_config) {
        conf_print(&table, stdout);
    } else if (args.n > 0) {
        fprintf(stderr, "yoked: '%s' is not a flag; `yoked --help` lists them\n", args.at[0]);
        code = 2;
    } else if (check_flags(&o, &why)) {
        fprintf(stderr, "yoked: %s\n", why.text);
        code = 2;
    } else if (log_open("yoked", (enum log_level)o.log_level, o.log_file, &why)) {
        fprintf(stderr, "yoked: %s\n", why.text);
        code = 1;
    } else {
        code = serve(&o);
        log_close();
    }
    conf_fini(&table, &o, &args);
    return code;
}
