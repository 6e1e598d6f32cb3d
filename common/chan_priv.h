/* What chan*.c share: frames as they are sent, and the state of a channel. A frame is a header of CHAN_HEADER_BYTES
 * (magic, length, type, kind, flags, stream; little-endian) and its payload: a message, the head of a stream, or a
 * chunk of a stream's body. */
#ifndef YK_CHAN_PRIV_H
#define YK_CHAN_PRIV_H

#include "common/chan.h"

#define CHAN_MAGIC 0x314B4F59u /* "YOK1" */
#define CHAN_HEADER_BYTES 16
#define CHAN_RX_BYTES 4096 /* headers and small messages; what of a chunk falls in here is copied */
#define CHAN_MAX_IN 64     /* streams that a peer may have open at once */

enum frame_kind { FRAME_MESSAGE, FRAME_HEAD, FRAME_CHUNK };
enum { FLAG_LAST = 1 };

struct header {
    uint32_t len, stream;
    uint16_t type;
    uint8_t kind, flags;
};

struct message_out {
    struct message_out *next;
    struct yk_buf bytes; /* header and payload */
};

struct stream_out {
    struct stream_out *next;
    enum chan_prio prio;
    uint32_t id;
    struct yk_buf head; /* header and payload; len 0 once sent */
    struct net_iov *body;
    int n_body, piece; /* piece: where the next chunk begins, at piece_at bytes in */
    size_t piece_at, total, sent;
    size_t turn; /* bytes of its turn that went */
    net_on_io done;
    void *arg;
};

struct stream_in {
    bool used;
    uint32_t id;
    struct chan_sink sink;
    size_t got;
};

enum rx_state { RX_HEADER, RX_PAYLOAD, RX_CHUNK };

struct chan {
    struct net *net;
    struct net_conn *conn; /* NULL once it broke or was closed */
    const struct chan_on *on;
    void *arg;
    size_t limit;
    int busy;  /* depth of callbacks; a close inside frees at the end of the outermost */
    bool dead; /* chan_close was called */
    bool broken;
    int64_t last_rx_us;
    uint64_t tx_bytes, rx_bytes;
    char peer[80];
    struct net_timer *flush_timer;

    enum rx_state state;
    uint8_t rx[CHAN_RX_BYTES];
    size_t rx_at, rx_len; /* unread bytes in rx */
    struct header head;   /* of the frame being read */
    uint8_t *payload;
    size_t payload_cap, payload_have;
    struct stream_in in[CHAN_MAX_IN];

    struct message_out *messages, **messages_end;
    size_t queued;
    struct stream_out *streams, **streams_end;
    uint32_t next_stream;
    bool sending;
    struct message_out *sending_message;
    struct stream_out *sending_stream;
    size_t sending_chunk; /* body bytes in flight */
    int64_t sending_us;   /* since when */
    size_t chunk_bytes;   /* the most of the next chunk */
    bool sending_last;
    uint8_t chunk_header[CHAN_HEADER_BYTES];
};

/* chan.c. Around every callback into the owner: chan_leave says false if the channel is gone now. */
void chan_enter(struct chan *c);
bool chan_leave(struct chan *c);
void chan_fail(
    struct chan *c, yk_err err, const char *text); /* it breaks: all that is borrowed ends, the owner hears */
void chan_free_message(struct message_out *m);
void chan_free_stream(struct stream_out *s, yk_err err); /* its done is called */

void chan_rx_go(struct chan *c); /* chan_rx.c: reads on */
void chan_tx_go(struct chan *c); /* chan_tx.c: sends what waits, unless something is being sent */

#endif
