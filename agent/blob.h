/* The data connection to yoked that stays open: content by SHA-256 into the cache, results out. */
#ifndef YK_BLOB_H
#define YK_BLOB_H

#include "agent/core.h"

void blob_open(struct agent *a);
void blob_close(struct agent *a); /* every fetch and stream ends with YK_CLOSED before it returns */
void blob_drop(struct agent *a);  /* closes the connection; it is dialled again when something is wanted */

int64_t blob_last_rx_us(const struct agent *a); /* when yoked was last heard there; 0: not connected */

/* From the cache, else from yoked; not more than max_bytes. fn comes once, later; on YK_OK the caller is a user of e
 * and fetched says how many bytes travelled. */
void blob_fetch(struct agent *a, const char *hex, int64_t max_bytes,
    void (*fn)(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched), void *arg);

/* Streams a result; body is borrowed until done. YK_CLOSED: not connected now (it dials); try again on blob_ready. */
yk_err blob_result(
    struct agent *a, const struct wire_result *head, const struct net_iov *body, int n, net_on_io done, void *arg);

/* The same for a part of a checkpoint set; it yields to microbatches. */
yk_err blob_part(
    struct agent *a, const struct wire_part *head, const struct net_iov *body, int n, net_on_io done, void *arg);

#endif
