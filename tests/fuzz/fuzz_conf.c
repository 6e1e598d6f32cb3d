/* Configuration text, as a file and as a command line (one argument a line). */
#include "common/conf.h"

#include <stdlib.h>
#include <string.h>

struct opts {
    int64_t threads, memory, lease_ms;
    double rate;
    bool verbose;
    int mode;
    struct conf_strs roots;
    char *name;
};

#define KEY(key, k, def, ...)                                                 \
    {                                                                         \
        .name = key, .kind = k, .otherwise = def, .help = "help", __VA_ARGS__ \
    }
static const struct conf_key keys[] = {
    KEY("threads", CONF_I64, "0", .lo = 0, .hi = 64, .offset = offsetof(struct opts, threads)),
    KEY("memory", CONF_BYTES, "1M", .offset = offsetof(struct opts, memory)),
    KEY("lease", CONF_DURATION_MS, "5s", .lo = 1, .hi = 100000, .offset = offsetof(struct opts, lease_ms)),
    KEY("rate", CONF_F64, "0.5", .offset = offsetof(struct opts, rate)),
    KEY("verbose", CONF_BOOL, NULL, .offset = offsetof(struct opts, verbose)),
    KEY("mode", CONF_ENUM, "auto", .choices = "auto|ref|blas", .offset = offsetof(struct opts, mode)),
    KEY("data-root", CONF_STRS, NULL, .offset = offsetof(struct opts, roots)),
    KEY("name", CONF_STR, "x", .offset = offsetof(struct opts, name)),
};
static const struct conf_table table = {.program = "fuzz-target", .keys = keys, .n_keys = YK_COUNT(keys)};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct opts o;
    struct conf_args args;
    struct yk_diag why;
    char *argv[34] = {(char *)"fuzz-target"}, *text = malloc(size + 1);
    int argc = 1;
    if (!text || conf_parse(&table, 1, argv, &o, &args, &why) != YK_OK)
        abort();
    if (conf_load(&table, "input", (const char *)data, size, &o, &why) == YK_OK &&
        (o.threads < 0 || o.threads > 64 || o.mode < 0 || o.mode > 2))
        abort();
    conf_fini(&table, &o, &args);
    memcpy(text, data, size);
    text[size] = 0;
    char *save, *line = strtok_r(text, "\n", &save);
    for (; line && argc < 33; line = strtok_r(NULL, "\n", &save))
        if (strncmp(line, "--config", 8) != 0) /* no files from here */
            argv[argc++] = line;
    conf_command(&table, argc, argv);
    if (conf_parse(&table, argc, argv, &o, &args, &why) == YK_OK)
        conf_fini(&table, &o, &args);
    free(text);
    return 0;
}
