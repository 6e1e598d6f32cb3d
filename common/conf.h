/* Configuration from one table: parsing, ranges, help text and the printed sample file all walk it.
 *
 * Precedence, later wins: default < file (--config=F) < environment < flag. The environment name of a key is the
 * program's name and the key in capitals with '_' for '-': yoke + rest = YOKE_REST, yoke-agent + data-root =
 * YOKE_AGENT_DATA_ROOT. A later source replaces a repeatable key's whole list.
 * Flags: --key=value, --key value, for switches also --key and --no-key; "--" ends flags. File: key = value lines,
 * '#' starts a comment line, errors come with file:line. Every program also has --config, --help, --version and
 * --print-config. */
#ifndef YK_CONF_H
#define YK_CONF_H

#include "common/yk.h"

#include <stdio.h>

struct conf_strs {
    char **at;
    int n;
};

/* What a key means, and the field that it fills. */
enum conf_kind {
    CONF_STR,         /* char *; NULL if the default is NULL */
    CONF_STRS,        /* struct conf_strs; the key may be repeated */
    CONF_I64,         /* int64_t */
    CONF_F64,         /* double */
    CONF_BYTES,       /* int64_t; suffix K M G T (1024) */
    CONF_DURATION_MS, /* int64_t; suffix ms s m h, none means ms */
    CONF_BOOL,        /* bool; true|false|yes|no|on|off|1|0 */
    CONF_ENUM,        /* int, index into choices */
};

struct conf_key {
    const char *name; /* dashed: "local-agents" */
    enum conf_kind kind;
    const char *otherwise; /* default as text; NULL: none (NULL string, empty list, 0, false, first choice) */
    int64_t lo, hi;        /* numbers only; lo == hi == 0: no limit */
    const char *help;      /* one sentence */
    size_t offset;         /* of the field in the caller's struct */
    const char *choices;   /* CONF_ENUM: "auto|ref|blas" */
    const char *value;     /* how help shows the value: "URL"; NULL: by kind */
};

struct conf_table {
    const char *program; /* "yoke-agent"; of a command too ("yoke"), so that the environment names agree */
    const char *usage;   /* first lines of help */
    const struct conf_key *keys;
    int n_keys;
    const struct conf_table *base; /* keys shared by all commands (same struct, same offsets), or NULL */
};

struct conf_args {
    char **at; /* positional arguments, borrowed from argv; the array is freed by conf_fini */
    int n;
    bool help, version, print_config; /* what was asked for; then nothing else need be right */
    char *config;                     /* the file that was read, or NULL */
    const struct conf_key **given;    /* those with a flag on the command line; freed by conf_fini */
    int n_given;
};

/* Fills out (any contents; it need not be zeroed) and args. Errors: YK_INVAL with the flag, file:line or variable, the
 * limit and the value; an unknown key names the closest known one; YK_NOTFOUND, YK_PERM for the file. On error nothing
 * need be freed. Owner: conf_fini. */
yk_err conf_parse(
    const struct conf_table *t, int argc, char **argv, void *out, struct conf_args *args, struct yk_diag *why);
/* Whether the command line has a flag of that name; a default, the file and the environment give none. */
bool conf_given(const struct conf_args *args, const char *name);
/* Applies text of a file to a struct that was filled before. name is for messages. */
yk_err conf_load(
    const struct conf_table *t, const char *name, const char *text, size_t len, void *out, struct yk_diag *why);
void conf_fini(const struct conf_table *t, void *out, struct conf_args *args); /* args may be NULL */

/* The first positional argument, knowing which of base's flags take a value; NULL if there is none. */
const char *conf_command(const struct conf_table *base, int argc, char **argv);

void conf_print(const struct conf_table *t, FILE *f); /* all keys with default and help; conf_load reads it */
void conf_help(const struct conf_table *t, FILE *f);

/* "64M" -> bytes, as CONF_BYTES reads it; false if malformed or too large. */
bool conf_bytes(const char *text, int64_t *out);

#endif
