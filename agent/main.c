/* yoke-agent: flags, sensors of this machine, signals. Everything else is the library. */
#include "agent/agent.h"
#include "agent/emulate.h"
#include "agent/sensor.h"
#include "common/conf.h"
#include "common/log.h"
#include "common/net_url.h"
#include "kernels/backend.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEAVE_US 200000 /* for the leave message to get out */

enum { EXIT_DONE, EXIT_FAILED, EXIT_USAGE };

struct options {
    char *scheduler, *listen, *state, *name, *backend, *emulate, *sensor_file;
    int class_name;
    int64_t memory_bytes, threads, backend_timeout_ms, backend_check_every, sensor_ms;
    struct conf_strs data_roots;
};

static const char *const classes[] = {"workstation", "phone", "cloud"};

static const struct conf_key keys[] = {
    {"scheduler", CONF_STR, NULL, 0, 0, "Where yoked is, for this agent to dial.", offsetof(struct options, scheduler),
        NULL, "URL"},
    {"listen", CONF_STR, NULL, 0, 0,
        "Where this agent is dialled, for data, and without --scheduler for control (default tcp://127.0.0.1:0).",
        offsetof(struct options, listen), NULL, "URL"},
    {"state", CONF_STR, NULL, 0, 0,
        "Folder of identity, weight cache and profiles (default $STATE_DIRECTORY, else $XDG_STATE_HOME/yoke/NAME).",
        offsetof(struct options, state), NULL, "DIR"},
    {"name", CONF_STR, NULL, 0, 0, "What people call this device (default: from its identity).",
        offsetof(struct options, name), NULL, "S"},
    {"class", CONF_ENUM, "workstation", 0, 0, "What kind of device it is.", offsetof(struct options, class_name),
        "workstation|phone|cloud", NULL},
    {"memory", CONF_BYTES, "0", 0, 0,
        "Budget for stages; 0: three quarters of what is available, less where that is below 90 MiB.",
        offsetof(struct options, memory_bytes), NULL, NULL},
    {"threads", CONF_I64, "0", 0, 1024, "Compute threads; 0: all cores.", offsetof(struct options, threads), NULL,
        NULL},
    {"backend", CONF_STR, "auto", 0, 0,
        "Backends in order of preference, with commas: auto, ref, simd, blas, or the path of a shared object (with a "
        "'/').",
        offsetof(struct options, backend), NULL, "NAME|/path/plugin.so"},
    {"backend-timeout-ms", CONF_I64, "10000", 1, 3600000,
        "A backend from a shared object that takes longer for a call is quarantined.",
        offsetof(struct options, backend_timeout_ms), NULL, NULL},
    {"backend-check-every", CONF_I64, "256", -1, 1000000000,
        "One run in so many of a shared object is repeated with ref; wrong answers take it out. -1: never.",
        offsetof(struct options, backend_check_every), NULL, NULL},
    {"data-root", CONF_STRS, NULL, 0, 0, "Folder whose data sets this agent may read for jobs; nothing else is served.",
        offsetof(struct options, data_roots), NULL, "DIR"},
    {"emulate", CONF_STR, NULL, 0, 0, "Behave like the device that this JSON file describes; only ever slower.",
        offsetof(struct options, emulate), NULL, "FILE"},
    {"sensor-file", CONF_STR, NULL, 0, 0,
        "Read these from a JSON file, again and again, instead of the machine: heat (nominal, fair, serious, "
        "critical), temperature_celsius, "
        "battery_frac (0 to 1), charging, memory_available_bytes; all optional. They go over those of --emulate.",
        offsetof(struct options, sensor_file), NULL, "FILE"},
    {"sensor-ms", CONF_DURATION_MS, "5000", 50, 3600000, "How often heat, battery and memory are read.",
        offsetof(struct options, sensor_ms), NULL, NULL},
};

static const struct conf_table table = {.program = "yoke-agent",
    .usage = "usage: yoke-agent --scheduler=URL | --listen=URL [flags]\n\nOffers this device to a yoked.\n",
    .keys = keys,
    .n_keys = (int)YK_COUNT(keys)};

struct program {
    struct net *net;
    struct agent *agent;
    struct sensor *sensor;
    int64_t sensor_ms;
    bool sensor_failed, leaving;
};

static void on_sensor(void *arg)
{
    struct program *p = arg;
    struct agent_sensors s;
    struct yk_diag why = {0};
    if (p->leaving)
        return;
    bool failed = sensor_read(p->sensor, &s, &why) != YK_OK;
    if (failed && !p->sensor_failed)
        log_warn("sensors: %s", why.text);
    p->sensor_failed = failed;
    agent_push_sensor(p->agent, &s);
    net_timer(p->net, p->sensor_ms * 1000, on_sensor, p);
}

static void on_state(void *arg, enum agent_state state, const char *text)
{
    const struct program *p = arg;
    log_at(state == AGENT_REFUSED ? LOG_ERROR : LOG_INFO, "%s", p->leaving ? "leaving" : text);
}

static void on_left(void *arg)
{
    net_stop(((struct program *)arg)->net);
}

static void on_signal(void *arg)
{
    struct program *p = arg;
    if (p->leaving)
        return;
    p->leaving = true;
    agent_suspend(p->agent);
    net_timer(p->net, LEAVE_US, on_left, p);
}

/* Makes the folders of path; what fails shows when storage is opened. */
static void make_folders(const char *path)
{
    char *copy = yk_xstrdup(path);
    for (char *p = copy + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(copy, 0700);
            *p = '/';
        }
    free(copy);
}

/* A folder that was asked for must work; the default may be missing (a service without a home): then in memory. */
static yk_err open_storage(const struct options *o, struct storage **out, struct yk_diag *why)
{
    if (o->state) {
        make_folders(o->state);
        return storage_dir_open(o->state, out, why);
    }
    const char *service = getenv("STATE_DIRECTORY"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    const char *name = o->name && !strchr(o->name, '/') && o->name[0] != '.' ? o->name : "agent";
    char *dir = NULL;
    if (service && service[0])
        dir = yk_xasprintf("%.*s", (int)strcspn(service, ":"), service);
    else if (xdg && xdg[0] == '/')
        dir = yk_xasprintf("%s/yoke/%s", xdg, name);
    else if (home && home[0] == '/')
        dir = yk_xasprintf("%s/.local/state/yoke/%s", home, name);
    if (dir) {
        make_folders(dir);
        yk_err err = storage_dir_open(dir, out, why);
        free(dir);
        if (!err)
            return YK_OK;
        log_warn("%s; keeping state in memory", why->text);
    } else {
        log_warn("no folder for state (give --state=DIR); keeping it in memory");
    }
    return storage_mem_open(out);
}

static int run(const struct options *o)
{
    struct program p = {0};
    struct storage *storage = NULL;
    struct agent_emulate emulate;
    struct yk_diag why = {0};
    int code = EXIT_FAILED;
    yk_err err = net_url_check("scheduler", "tcp", o->scheduler, &why);
    if (!err)
        err = net_url_check("listen", "tcp", o->listen, &why);
    if (!err && o->backend && backends_check(o->backend, &why))
        err = yk_wrap(&why, YK_INVAL, "--backend");
    if (!err && o->state && !o->state[0])
        err = yk_fail(&why, YK_INVAL, "--state= is empty");
    if (!err && o->sensor_file && !o->sensor_file[0])
        err = yk_fail(&why, YK_INVAL, "--sensor-file= is empty");
    if (!err && o->emulate && (err = emulate_load(o->emulate, &emulate, &why)))
        yk_wrap(&why, err, "--emulate");
    if (err) {
        log_error("%s", why.text);
        return EXIT_USAGE;
    }
    for (int i = 0; i < o->data_roots.n; i++)
        if (access(o->data_roots.at[i], R_OK | X_OK) != 0) {
            log_error("--data-root=%s: %s", o->data_roots.at[i], strerror(errno));
            return EXIT_USAGE;
        }
    const char **roots = yk_xalloc(((size_t)o->data_roots.n + 1) * sizeof *roots);
    for (int i = 0; i < o->data_roots.n; i++)
        roots[i] = o->data_roots.at[i];
    p.sensor_ms = o->sensor_ms;
    err = net_nng_open(&p.net, &why);
    if (!err)
        err = open_storage(o, &storage, &why);
    if (!err)
        err =
            o->sensor_file ? sensor_file_open(o->sensor_file, &p.sensor, &why) : sensor_linux_open("", &p.sensor, &why);
    if (!err) {
        struct agent_config c = {.net = p.net,
            .storage = storage,
            .scheduler_url = o->scheduler,
            .listen_url = o->listen,
            .name = o->name,
            .class_name = classes[o->class_name],
            .memory_bytes = o->memory_bytes,
            .threads = (int)o->threads,
            .threaded = true,
            .backend = o->backend,
            .backend_timeout_ms = o->backend_timeout_ms,
            .backend_check_every = o->backend_check_every,
            .data_roots = roots,
            .emulate = o->emulate ? &emulate : NULL,
            .on_state = on_state,
            .arg = &p};
        err = agent_open(&c, &p.agent, &why);
    }
    if (!err)
        err = net_nng_on_signal(p.net, SIGTERM, on_signal, &p);
    if (!err)
        err = net_nng_on_signal(p.net, SIGINT, on_signal, &p);
    if (!err) {
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* a write past a size limit is an error like a full disk */
        log_info("listening for data at %s", agent_url(p.agent));
        on_sensor(&p);
        net_run(p.net);
        code = EXIT_DONE;
    } else {
        log_error("%s", why.text);
        code = err == YK_INVAL ? EXIT_USAGE : EXIT_FAILED;
    }
    agent_close(p.agent);
    sensor_close(p.sensor);
    if (storage)
        storage->ops->close(storage);
    net_close(p.net);
    free(roots);
    return code;
}

int main(int argc, char **argv)
{
    struct options o;
    struct conf_args args;
    struct yk_diag why = {0};
    int code = EXIT_DONE;
    mallopt(M_MMAP_THRESHOLD, 1 << 18); /* what is large goes back to the system when it is freed */
    log_open("yoke-agent", LOG_INFO, NULL, NULL);
    if (conf_parse(&table, argc, argv, &o, &args, &why) != YK_OK) {
        fprintf(stderr, "yoke-agent: %s\n", why.text);
        return EXIT_USAGE;
    }
    if (args.help) {
        conf_help(&table, stdout);
    } else if (args.version) {
        puts("yoke-agent " YOKE_VERSION);
    } else if (args.print_config) {
        conf_print(&table, stdout);
    } else if (args.n) {
        fprintf(stderr, "yoke-agent: '%s' is not a flag; see --help\n", args.at[0]);
        code = EXIT_USAGE;
    } else if (!o.scheduler && !o.listen) {
        fprintf(stderr, "yoke-agent: give --scheduler=URL to dial yoked, or --listen=URL to be dialled; see --help\n");
        code = EXIT_USAGE;
    } else {
        code = run(&o);
    }
    conf_fini(&table, &o, &args);
    return code;
}
