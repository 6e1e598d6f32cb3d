/* Content by SHA-256, beside the database: uploads in parts, and slices of files (a model's weights) that agents fetch.
 * The index is in memory; rows of it are in the store. write and finish block: they are for the store's worker. */
#ifndef YK_BLOB_H
#define YK_BLOB_H

#include "common/hash.h"

struct blobs;

#define BLOB_PART_LIMIT ((size_t)4 << 20)
#define BLOB_LIMIT ((int64_t)64 << 30)

yk_err blobs_open(const char *dir, struct blobs **out, struct yk_diag *why); /* makes dir with mode 0700 */
void blobs_close(struct blobs *b);
const char *blobs_dir(const struct blobs *b);

/* A slice that is known: file is relative to dir. Replaces an older entry. */
void blobs_add(struct blobs *b, const char *hash, const char *file, int64_t at, int64_t bytes);
/* The file that holds it, NULL if it is not known. */
const char *blobs_file(const struct blobs *b, const char *hash);
/* The same, and where in it; both may be NULL. */
const char *blobs_place(const struct blobs *b, const char *hash, int64_t *at, int64_t *bytes);
/* All files by number, "" for one that was removed, NULL at the end. */
const char *blobs_file_at(const struct blobs *b, int32_t i);
/* Forgets everything that lies in a file and returns its bytes; the caller removes the file itself. What was mapped
 * stays so for an hour, for transfers that are under way. */
int64_t blobs_remove(struct blobs *b, const char *file, int64_t now_us);
/* A file was replaced by another of its name: what lies in it is read from that. */
void blobs_renew(struct blobs *b, const char *file, int64_t now_us);
/* Forgets one content; its file stays. */
void blobs_forget(struct blobs *b, const char *hash);
/* When the file of a content was written last, as it was when its bytes were known to be right; 0: they are not. */
int64_t blobs_sound_ns(const struct blobs *b, const char *hash);
void blobs_set_sound(struct blobs *b, const char *hash, int64_t written_ns);
void blobs_unmap_removed(struct blobs *b, int64_t now_us);
bool blobs_find(const struct blobs *b, const char *hash, int64_t *bytes); /* bytes may be NULL */
/* The bytes, mapped for as long as b is open. YK_NOTFOUND; YK_IO names the file if it is gone or too short. */
yk_err blobs_map(struct blobs *b, const char *hash, const uint8_t **data, int64_t *bytes, struct yk_diag *why);

/* Removes uploads that nobody went on with for part_s seconds (-1: all) and outputs of jobs (job-*.npy, job-*.onnx)
 * older than output_s. For the thread that also writes uploads. */
void blobs_sweep(const struct blobs *b, int64_t part_s, int64_t output_s);

/* Whether a slice of a file of the folder dir has the bytes of this SHA-256. Blocks. sound_ns: of blobs_sound_ns, so
 * that what has not been written since is not read again, and set for blobs_set_sound; NULL: it is read. Errors name
 * the file: YK_NOTFOUND it is gone, YK_IO it is too short or cannot be read, YK_FORMAT it has other bytes; YK_BUSY it
 * cannot be opened, which may pass and tells nothing. Thread: any. */
yk_err blob_check(const char *dir, const char *file, int64_t at, int64_t bytes, const char *hash, int64_t *sound_ns,
    struct yk_diag *why);
/* A file of the folder that this program has written: its SHA-256 (blocks), and another name for it. */
yk_err blob_hash_file(const char *dir, const char *file, char hash[HASH_HEX_SIZE], struct yk_diag *why);
yk_err blob_rename(const struct blobs *b, const char *file, const char *to, int64_t *bytes);

/* ---- uploads; any thread, one at a time for one hash ---- */
/* How many bytes of an unfinished upload are there. */
int64_t blob_part_have(const struct blobs *b, const char *hash);
/* Appends a part; offset must not leave a gap. When all of total is there the hash is checked and the file takes its
 * name: *complete. A wrong hash, and a write that failed, remove the upload. Errors name what and the limit. */
yk_err blob_part_write(const struct blobs *b, const char *hash, int64_t offset, int64_t total, const void *data,
    size_t len, bool *complete, struct yk_diag *why);

#endif
