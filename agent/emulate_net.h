/* A net in front of another whose connections all share the emulated link: a send completes when its bytes have passed
 * the link (a little ahead of that, so that late timers cost no rate), a received byte is handed out after it has. */
#ifndef YK_EMULATE_NET_H
#define YK_EMULATE_NET_H

#include "agent/emulate.h"
#include "common/net.h"

/* Timers, posts and clock are inner's (borrowed, outlives everything). Closing it leaves connections that still flush
 * their last bytes: it goes with the last of them. */
yk_err emulate_net_open(struct net *inner, const struct agent_emulate *e, struct net **out);

#endif
