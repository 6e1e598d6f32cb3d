/* Backends from shared objects. One that was loaded looks like a host backend to whoever runs it: buffers are host
 * memory, and a run is answered in any case.
 *
 * Behind that stands one thread per plug-in, which makes every call into it, and a reference segment beside every
 * segment of the plug-in. The caller waits with a limit. If the plug-in does not come back in time it is quarantined:
 * it is never called again, what it may still touch is left alone for ever, and the reference answers this run and all
 * later ones. The same where it fails or was found to answer wrongly. Outputs are looked at for non-finite values after
 * every run, before anybody sees them; those, and one run in check_every, are repeated with the reference on the same
 * inputs. What is taken out claims no nodes any more. */
#ifndef YK_PLUGIN_H
#define YK_PLUGIN_H

#include "kernels/backend.h"

#define PLUGIN_RELATIVE 1e-3 /* how far float answers may be from the reference's: max|a-b| / max|b| */

/* Loads path, checks version, symbol, functions and name, and opens the device.
 * Errors: YK_NOTFOUND, YK_FORMAT (not a shared object, no entry, a function is missing, a bad name), YK_VERSION,
 * YK_TIMEOUT, YK_UNSUPPORTED (it finds no device); why names the file, what is missing and the version wanted. */
yk_err plugin_open(const char *path, const struct backends_config *config, struct pool *pool, struct backend **out,
    struct yk_diag *why);

bool plugin_is(const struct backend *b);
const char *plugin_path(const struct backend *b);
/* Self-test: an error of the plug-in is the run's error, nothing is repeated. */
void plugin_strict(struct backend *b, bool strict);
/* True if it was taken out; then why says what happened. hung may be NULL. Any thread. */
bool plugin_lost(struct backend *b, bool *hung, struct yk_diag *why);
/* Takes it out: it claims nothing from here on. Logged. */
void plugin_take_out(struct backend *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* How far a is from the reference b, as the checks see it: max|a-b| / max|b| with a floor for what cancels, scaled so
 * that PLUGIN_RELATIVE is the limit for every type (half floats round earlier, integers may be one off). Infinity if a
 * has a non-finite value where b is finite. */
double plugin_distance(enum dtype t, const void *a, const void *b, int64_t count);

#endif
