/* Framed messages and streams over one net connection.
 *
 * Frame = 16-byte header + payload, little-endian:
 *   u32 magic "YOK1" | u32 payload bytes | u16 message type | u8 kind (0 message, 1 stream head, 2 stream chunk)
 *   | u8 flags (1 = last chunk) | u32 stream id (chosen by the sender, 0 for messages)
 * A stream is a head message (any wire type) followed by chunks of at most WIRE_CHUNK_BYTES that fill a buffer which
 * the receiver gave when it saw the head: nothing is allocated because a peer said so. A slow link gets chunks of what
 * it takes in a tenth of a second, so that whatever else goes over it need not wait longer. Messages go before chunks;
 * streams of higher priority before lower; equal priorities take turns by WIRE_CHUNK_BYTES. Order: messages are in
 * order; the chunks of a stream are in order; a stream completes before its `done` fires; streams of equal priority
 * begin in order. At most 64 streams are open at once each way; what is queued beyond 32 of a priority waits before its
 * head. One thread: the loop. */
#ifndef YK_CHAN_H
#define YK_CHAN_H

#include "common/net.h"
#include "common/wire.h"

struct chan;

enum chan_prio { CHAN_BULK = 0, CHAN_DATA = 1 }; /* checkpoints and weights yield to microbatches */

/* Where the bytes of an incoming stream go: one buffer of at least the body's bytes. */
struct chan_sink {
    void *buf;
    size_t len;                          /* bytes expected; a sender that sends another number is cut off */
    void (*done)(void *arg, yk_err err); /* all bytes are there (YK_OK), or the channel ended first */
    void *arg;
};

struct chan_on {
    /* A decoded message. The callee may take msg (then it clears msg->arena); else it is freed after the call.
     * An error return closes the channel with that error. */
    yk_err (*message)(void *arg, struct chan *c, struct wire_msg *msg);
    /* A stream head: fill sink, or return an error to cut the channel off (unknown edge, no credit, too large). */
    yk_err (*stream)(void *arg, struct chan *c, struct wire_msg *head, struct chan_sink *sink);
    /* Once, last: the connection ended or broke a rule (why says which). The callee must call chan_close, now or later.
     */
    void (*closed)(void *arg, struct chan *c, yk_err err, const char *why);
};

/* Takes conn. Starts receiving at once; callbacks run on the loop, never from inside a chan_ call. */
struct chan *chan_open(struct net_conn *conn, const struct chan_on *on, void *arg);
void chan_set(struct chan *c, const struct chan_on *on, void *arg); /* hand over after the hello */
/* Raises the message limit, in and out, from WIRE_CONTROL_LIMIT to WIRE_MESSAGE_LIMIT. */
void chan_trust(struct chan *c);

/* Queues a message. YK_LIMIT if it encodes to more than the peer takes (see chan_trust), YK_CLOSED after the end,
 * YK_BUSY if more than 8 MiB of messages wait (a peer that does not read). */
yk_err chan_send(struct chan *c, enum wire_type type, const void *msg);
/* Queues a stream. body is borrowed until done ran (always runs, once, on the loop; also at chan_close). Errors as
 * chan_send; then done does not run and body is the caller's again. */
yk_err chan_stream(struct chan *c, enum chan_prio prio, enum wire_type type, const void *head,
    const struct net_iov *body, int n, net_on_io done, void *arg);

int64_t chan_last_rx_us(const struct chan *c); /* when the last bytes came in, for liveness */
uint64_t chan_tx_bytes(const struct chan *c);
uint64_t chan_rx_bytes(const struct chan *c);
const char *chan_peer(const struct chan *c);
/* Sends what messages are queued if flush (bounded to 1 s; keep the loop running), then closes and frees. While a chunk
 * is on its way in either direction there is no flush: its memory is the caller's again when this returns. No callback
 * of it runs afterwards except the done of borrowed bodies and sinks (with YK_CLOSED), which run before it returns. */
void chan_close(struct chan *c, bool flush);

#endif
