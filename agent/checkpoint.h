/* Checkpoints of a training: named tensors, a step and a few words, as one blob in a storage that is durable or is not
 * there. A kill at any instant, or a full disk, leaves the last good one. The format is little-endian:
 *   "YOKECKPT", u32 version, u32 number of tensors, u64 length of all, u64 length of the head, config (32 bytes)
 *   head: JSON {"step", "note", "tensors": [{"name", "dtype", "dims", "at"}]}, then the tensors, each at a multiple of
 *   64, then a u64 checksum of everything before it.
 * config says which training it is of (model, optimizer, data order ...): another's is refused. Thread: any that has
 * the storage to itself. */
#ifndef YK_CHECKPOINT_H
#define YK_CHECKPOINT_H

#include "common/graph.h"
#include "common/storage.h"

#define CHECKPOINT_CONFIG_BYTES 32
#define CHECKPOINT_TENSORS_MAX 1000000

struct checkpoint_tensor {
    const char *name;
    struct shape shape;
    const void *data;
};

struct checkpoint {
    uint8_t config[CHECKPOINT_CONFIG_BYTES];
    int64_t step;
    const char *note; /* the caller's own text */
    const struct checkpoint_tensor *tensors;
    int32_t n_tensors;
};

/* Below prefix (a storage key). keep: how many of the newest stay (0: all); older ones go once this one is durable.
 * Errors: YK_NOSPC and what else put says; nothing is lost then. */
yk_err checkpoint_save(
    struct storage *s, const char *prefix, const struct checkpoint *c, int keep, struct yk_diag *why);

/* That of a step, or (step below 0) the newest that is whole; skipped says how many newer ones were not. Strings and
 * data point into what out holds. config NULL: of any training. Errors: YK_NOTFOUND: there is none. YK_FORMAT: cut,
 * changed, or no checkpoint; names it. YK_VERSION. YK_STATE: it is of another training. Owner: checkpoint_close. */
struct checkpoint_file {
    struct checkpoint c;
    int32_t skipped;
    struct storage *storage;
    struct storage_map map;
    void *priv;
};
yk_err checkpoint_open(struct storage *s, const char *prefix, const uint8_t config[CHECKPOINT_CONFIG_BYTES],
    int64_t step, struct checkpoint_file *out, struct yk_diag *why);
void checkpoint_close(struct checkpoint_file *f); /* a zeroed one is allowed */

/* Copies a tensor's elements. Errors: YK_NOTFOUND; YK_INVAL if its shape is another. */
yk_err checkpoint_take(
    const struct checkpoint *c, const char *name, const struct shape *shape, void *data, struct yk_diag *why);
void checkpoint_remove(struct storage *s, const char *prefix, int64_t step);
/* Once that of `newest` is what goes on: newer ones, which are not whole, and all but the last `keep` are removed; a
 * kill between a save and its clearing up leaves one too many. */
void checkpoint_tidy(struct storage *s, const char *prefix, int64_t newest, int keep);

#endif
