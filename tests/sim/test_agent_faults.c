/* What a peer, a scheduler or a network does wrong, and what an agent makes of it. */
#include "tests/sim/agent_bed.h"

static void other_versions_are_refused(void **state)
{
    (void)state;
    struct bed *b = bed_open(0);
    b->refuse = true;
    bed_start(b, 0, NULL, 0);
    BED_UNTIL(b, 2000, b->agents[0].state == AGENT_REFUSED);
    assert_non_null(strstr(b->agents[0].state_text, "9.0"));
    b->refuse = false; /* the scheduler was updated: the agent comes by itself */
    BED_UNTIL(b, 10000, b->agents[0].joins == 1);
    bed_close(b);
}

static void an_older_term_is_not_obeyed(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    struct bed_plan p = bed_two_stages;
    p.term = 2;
    bed_load(b, &p, NULL);
    net_mem_run_for(b->net, 3000000);
    assert_int_equal(b->n_loaded, 0);
    bed_load_ok(b, &bed_two_stages);
    /* A scheduler that restarted has a newer term: what it did not load goes. */
    b->term = 4;
    for (int i = 0; i < 2; i++) {
        chan_close(b->agents[i].control, false);
        b->agents[i].control = NULL;
    }
    BED_UNTIL(b, 3000, bed_joined(b, 2));
    net_mem_run_for(b->net, 100000);
    p = bed_two_stages;
    p.term = 4;
    bed_run(b, &p, &(struct wire_run){0});
    BED_UNTIL(b, 1000, b->n_done == 1);
    assert_string_equal(b->done_error, "NOTFOUND");
    bed_close(b);
}

static void a_silent_scheduler_is_redialled(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    net_mem_cut(b->net, "yoked", true); /* bytes vanish, nobody hangs up */
    BED_UNTIL(b, 3500, b->agents[0].state == AGENT_CONNECTING);
    net_mem_run_for(b->net, 6000000);
    net_mem_cut(b->net, "yoked", false);
    BED_UNTIL(b, 12000, b->agents[0].joins >= 2 && b->agents[1].joins >= 2 && bed_joined(b, 2));
    net_mem_run_for(b->net, 300000);
    bed_run(b, &bed_two_stages, &(struct wire_run){0}); /* a lease without a scheduler: it was unloaded */
    BED_UNTIL(b, 1000, b->n_done == 1);
    assert_string_equal(b->done_error, "NOTFOUND");
    bed_close(b);
}

static void a_short_break_keeps_the_pipeline(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    for (int i = 0; i < 2; i++) {
        chan_close(b->agents[i].control, false);
        b->agents[i].control = NULL;
    }
    BED_UNTIL(b, 1500, bed_joined(b, 2));
    bed_run(b, &bed_two_stages, &(struct wire_run){.want_outputs = true});
    BED_UNTIL(b, 5000, b->n_done == 1 && b->n_results == 8);
    bed_check_outputs(b, 5, BED_SAMPLES);
    bed_close(b);
}

static void a_lost_peer_is_told(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    net_mem_set_link(b->net, "agent1", 1000, 1e6);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    bed_run(b, &bed_two_stages, &(struct wire_run){.want_outputs = true});
    BED_UNTIL(b, 5000, b->n_results >= 1);
    bed_stop(b, 1);
    BED_UNTIL(b, 2000, b->n_failed == 1 && b->n_done == 1);
    assert_string_equal(b->failed_peer, b->agents[1].id);
    assert_true(b->done_error[0] != 0);
    assert_int_equal(b->agents[0].generations, 1);      /* as its pings say */
    BED_UNTIL(b, 35000, b->agents[0].generations == 0); /* nobody unloads it: it goes all the same */
    struct bed_plan p = bed_two_stages;                 /* the agent itself is well */
    p.generation = 2;
    p.n_stages = 1;
    bed_load_ok(b, &p);
    b->n_done = 0;
    bed_forget_results(b);
    bed_run(b, &p, &(struct wire_run){.want_outputs = true});
    BED_UNTIL(b, 5000, b->n_done == 1 && b->n_results == 8);
    bed_check_outputs(b, 5, BED_SAMPLES);
    bed_close(b);
}

/* ---- loads that cannot be ---- */

static void bad_codec(struct wire_load *w, int agent)
{
    (void)agent;
    w->edges.at[0].codec = "zip";
}
static void bad_nodes(struct wire_load *w, int agent)
{
    (void)agent;
    if (w->stages.n)
        w->stages.at[0].nodes.at[0].last = 4000;
}
static void bad_graph(struct wire_load *w, int agent)
{
    (void)agent;
    w->graph = "0000000000000000000000000000000000000000000000000000000000000000";
}
static void bad_values(struct wire_load *w, int agent)
{
    (void)agent;
    for (size_t i = 0; i < w->edges.n; i++)
        w->edges.at[i].values.at[0] = 1 << 20;
}
static void bad_value(struct wire_load *w, int agent)
{
    (void)agent;
    for (size_t i = 0; i < w->edges.n; i++)
        w->edges.at[i].values.at[0] = 0; /* the wrong one, or one that stage does not make */
}
static void bad_batch(struct wire_load *w, int agent)
{
    (void)agent;
    w->sizes.at[0].value = (int64_t)1 << 50;
}
static void no_batch(struct wire_load *w, int agent)
{
    (void)agent;
    w->sizes.n = 0;
}
static void bad_forms(struct wire_load *w, int agent)
{
    static const char *forms[3] = {"a", "b", "c"};
    (void)agent;
    if (w->stages.n) {
        w->stages.at[0].forms.at = forms;
        w->stages.at[0].forms.n = 3;
    }
}
static void unknown_forms(struct wire_load *w, int agent)
{
    static const char *forms[64];
    (void)agent;
    for (int i = 0; i < 64; i++)
        forms[i] = "conv.magic@quantum";
    if (w->stages.n) {
        w->stages.at[0].forms.at = forms;
        w->stages.at[0].forms.n = 10;
        w->stages.at[0].forms.n = (size_t)(w->stages.at[0].nodes.at[0].last + 1);
    }
}
static void bad_kind(struct wire_load *w, int agent)
{
    (void)agent;
    w->kind = "dance";
}
static void no_training(struct wire_load *w, int agent)
{
    (void)agent;
    w->kind = "train";
}
static void bad_training(struct wire_load *w, int agent)
{
    (void)agent;
    w->kind = "train";
    w->training = (struct wire_training){.config = "{}", .loss = 0, .scores = 77, .save_every = 1};
}
/* As if the model were a training graph, whose stages have both halves each. */
static void training_of(struct wire_load *w)
{
    w->kind = "train";
    w->training = (struct wire_training){.config = "{}", .n_outputs = 1, .save_every = 1, .batch = 5};
    for (size_t i = 0; i < w->stages.n; i++)
        w->stages.at[i].pair = w->stages.at[i].index;
}
static void huge_batch(struct wire_load *w, int agent)
{
    (void)agent;
    training_of(w);
    w->training.batch = INT64_MAX;
}
static int64_t first_weight; /* of the model */
static void huge_slot(struct wire_load *w, int agent)
{
    (void)agent;
    static int64_t uses[1];
    static struct wire_param param;
    static struct wire_kept kept;
    training_of(w);
    param = (struct wire_param){.value = first_weight, .uses = {uses, 1}};
    kept = (struct wire_kept){.value = first_weight, .slot = INT32_MAX, .hash = w->graph, .bytes = 1 << 20};
    w->training.params.at = &param;
    w->training.kept.at = &kept;
    w->training.params.n = w->training.kept.n = 1;
}
static void many_credits(struct wire_load *w, int agent)
{
    (void)agent;
    w->edges.at[0].credits = (int64_t)1 << 40;
}
static void other_ticket(struct wire_load *w, int agent)
{
    for (size_t i = 0; agent == 1 && i < w->edges.n; i++)
        w->edges.at[i].ticket = (struct wire_bin){(const uint8_t *)"another ticket!!", 16};
}

static void bad_loads_are_undone(void **state)
{
    (void)state;
    static const struct {
        void (*change)(struct wire_load *w, int agent);
        const char *error;
    } cases[] = {{bad_codec, "UNSUPPORTED"}, {bad_nodes, "INVAL"}, {bad_graph, "NOTFOUND"}, {bad_values, "INVAL"},
        {bad_value, "INVAL"}, {bad_batch, NULL}, {no_batch, "INVAL"}, {bad_forms, "INVAL"}, {unknown_forms, NULL},
        {bad_kind, "UNSUPPORTED"}, {no_training, "FORMAT"}, {bad_training, "INVAL"}, {huge_batch, "INVAL"},
        {huge_slot, "INVAL"}, {many_credits, "INVAL"}, {other_ticket, "AUTH"}};
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    while (b->graph->values[first_weight].kind != VALUE_WEIGHT)
        first_weight++;
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct bed_plan p = bed_two_stages;
        p.generation = 100 + (int64_t)i;
        b->n_loaded = 0;
        b->loaded_error[0] = 0;
        bed_load(b, &p, cases[i].change);
        BED_UNTIL(b, 25000, b->n_loaded >= 1);
        if (!b->loaded_error[0] || !b->loaded_text[0] ||
            (cases[i].error && strcmp(b->loaded_error, cases[i].error) != 0))
            fail_msg("case %zu: %s '%s'", i, b->loaded_error, b->loaded_text);
        bed_unload(b, &p);
    }
    bed_load_ok(b, &bed_two_stages); /* and nothing of it is left behind */
    assert_int_equal(b->n_failed, 0);
    bed_close(b);
}

static void too_large_for_the_budget(void **state)
{
    (void)state;
    struct bed *b = bed_open(0);
    bed_start(b, 0, NULL, 100000);
    BED_UNTIL(b, 2000, bed_joined(b, 1));
    struct bed_plan p = bed_two_stages;
    p.n_stages = 1;
    bed_load(b, &p, NULL);
    BED_UNTIL(b, 5000, b->n_loaded == 1);
    assert_string_equal(b->loaded_error, "NOMEM");
    assert_non_null(strstr(b->loaded_text, "100000"));
    bed_close(b);
}

static void a_load_ends_in_time(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    struct bed_plan p = bed_two_stages;
    p.timeout_ms = 3000;
    struct chan *other = b->agents[1].control;
    b->agents[1].control = b->agents[0].control; /* the second part goes to the wrong agent: a duplicate generation */
    bed_load(b, &p, NULL);
    b->agents[1].control = other;
    BED_UNTIL(b, 100, b->n_loaded == 1);
    assert_string_equal(b->loaded_error, "EXISTS");
    BED_UNTIL(b, 3500, b->n_loaded == 2);
    assert_string_equal(b->loaded_error, "TIMEOUT");
    assert_non_null(strstr(b->loaded_text, b->agents[1].id));
    bed_close(b);
}

static void wrong_blobs(void **state)
{
    (void)state;
    for (int huge = 0; huge < 2; huge++) {
        struct bed *b = bed_open(1);
        BED_UNTIL(b, 2000, bed_joined(b, 1));
        struct bed_plan p = bed_two_stages;
        p.n_stages = 1;
        bed_load_ok(b, &p); /* the graph is in the cache now, and so are the weights */
        bed_unload(b, &p);
        agent_memory_warning(b->agents[0].agent); /* not any more */
        b->corrupt = !huge;
        b->huge = huge;
        p.generation = 2;
        bed_load(b, &p, NULL);
        BED_UNTIL(b, 20000, b->n_loaded == 1);
        assert_true(b->loaded_error[0] != 0);
        b->corrupt = b->huge = false;
        p.generation = 3;
        bed_load_ok(b, &p);
        bed_close(b);
    }
}

/* ---- a peer of our own on an edge ---- */

struct stranger {
    struct chan *chan;
    bool closed, refused, other;
    char text[200], error[32];
    int64_t credits;
    int streams;
};

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    (void)c;
    struct stranger *s = arg;
    if (m->type == WIRE_TYPE_refuse) {
        s->refused = true;
        snprintf(s->text, sizeof s->text, "%s", m->as.refuse.text);
        snprintf(s->error, sizeof s->error, "%s", m->as.refuse.error);
    } else if (m->type == WIRE_TYPE_credit) {
        s->credits += m->as.credit.n;
    } else {
        s->other = true;
    }
    return YK_OK;
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    (void)err, (void)why;
    struct stranger *s = arg;
    s->closed = true;
    s->chan = NULL;
    chan_close(c, false);
}

static uint8_t thrown_away[1 << 16];

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)c;
    assert_int_equal(m->type, WIRE_TYPE_microbatch);
    assert_true(m->as.microbatch.body_bytes <= (int64_t)sizeof thrown_away);
    ((struct stranger *)arg)->streams++;
    *sink = (struct chan_sink){thrown_away, (size_t)m->as.microbatch.body_bytes, NULL, NULL};
    return YK_OK;
}

static const struct chan_on on_stranger = {on_message, on_stream, on_closed};

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    assert_int_equal(err, YK_OK);
    struct stranger *s = arg;
    s->chan = chan_open(conn, &on_stranger, s);
}

static void say_hello(struct bed *b, struct stranger *s, const struct wire_hello *like)
{
    struct wire_hello h = *like;
    memset(s, 0, sizeof *s);
    net_dial(b->net, "mem://agent1", 1000000, on_dial, s);
    BED_UNTIL(b, 1000, s->chan);
    if (!h.kind)
        h.kind = "data";
    if (!h.purpose)
        h.purpose = "edge";
    if (!h.version_major)
        h.version_major = WIRE_VERSION_MAJOR;
    if (h.version_major < 0)
        return;
    chan_send(s->chan, WIRE_TYPE_hello, &h);
}

static void strangers_are_refused(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    struct stranger s;
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    uint8_t used[16], wrong[16] = {0};
    memset(used, 17, sizeof used); /* of edge 1, stage 0 -> 1 */
    const char *peer = b->agents[0].id;
    say_hello(b, &s, &(struct wire_hello){.agent = peer, .generation = 1, .edge = 1, .ticket = {used, 16}});
    BED_UNTIL(b, 1000, s.refused && s.closed);
    assert_non_null(strstr(s.text, "used"));
    say_hello(b, &s, &(struct wire_hello){.agent = peer, .generation = 1, .edge = 1, .ticket = {wrong, 16}});
    BED_UNTIL(b, 1000, s.refused && s.closed);
    assert_string_equal(s.error, "AUTH");
    say_hello(b, &s, &(struct wire_hello){.agent = "somebody", .generation = 1, .edge = 1, .ticket = {used, 16}});
    BED_UNTIL(b, 1000, s.refused && s.closed);
    say_hello(b, &s, &(struct wire_hello){.agent = peer, .version_major = 2, .version_minor = 5});
    BED_UNTIL(b, 1000, s.refused && s.closed);
    assert_non_null(strstr(s.text, "2.5"));
    assert_non_null(strstr(s.text, "1.0"));
    say_hello(b, &s, &(struct wire_hello){.agent = "yoked", .kind = "control"}); /* nobody else commands it */
    BED_UNTIL(b, 1000, s.refused && s.closed);
    say_hello(b, &s, &(struct wire_hello){.agent = peer, .purpose = "blob"});
    BED_UNTIL(b, 1000, s.refused && s.closed);
    say_hello(b, &s, &(struct wire_hello){.version_major = -1}); /* says nothing */
    BED_UNTIL(b, 6000, s.closed);
    say_hello(b, &s, &(struct wire_hello){.agent = peer, .generation = 99, .edge = 0, .ticket = {used, 16}});
    net_mem_run_for(b->net, 110000000);
    assert_false(s.closed);        /* its load may still come ... */
    BED_UNTIL(b, 15000, s.closed); /* ... but not for ever */
    struct wire_ping not_a_hello = {.seq = 1};
    say_hello(b, &s, &(struct wire_hello){.version_major = -1});
    chan_send(s.chan, WIRE_TYPE_ping, &not_a_hello);
    BED_UNTIL(b, 1000, s.closed);
    /* The pipeline did not notice any of it. */
    bed_run(b, &bed_two_stages, &(struct wire_run){.want_outputs = true});
    BED_UNTIL(b, 5000, b->n_done == 1 && b->n_results == 8);
    bed_check_outputs(b, 5, BED_SAMPLES);
    bed_close(b);
}

static void vanishing_clients_leave_nothing(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    for (int i = 0; i < 1000; i++) {
        struct stranger s;
        say_hello(b, &s,
            &(struct wire_hello){
                .agent = b->agents[0].id, .generation = 50 + i, .ticket = {(const uint8_t *)"0123456789abcdef", 16}});
        net_mem_run_for(b->net, 1000);
        if (s.chan)
            chan_close(s.chan, false);
    }
    net_mem_run_for(b->net, 1000000);
    bed_load_ok(b, &bed_two_stages); /* no place is taken for ever */
    bed_close(b);
}

/* The first stage is played by the test: agent 1 holds stage 1 of a plan whose stage 0 nobody has. */
struct wrong {
    const char *what, *error;
    void (*change)(struct wire_microbatch *w);
};

static int64_t one[1] = {1};
static void w_count(struct wire_microbatch *w)
{
    w->count = 6;
}
static void w_zero(struct wire_microbatch *w)
{
    w->count = 0;
}
static void w_dims(struct wire_microbatch *w)
{
    w->tensors.at[0].dims.at[1] *= 2;
}
static void w_rank(struct wire_microbatch *w)
{
    w->tensors.at[0].dims.at = one;
    w->tensors.at[0].dims.n = 1;
}
static void w_bytes(struct wire_microbatch *w)
{
    w->tensors.at[0].bytes = (int64_t)1 << 40;
    w->body_bytes = (int64_t)1 << 40;
}
static void w_body(struct wire_microbatch *w)
{
    w->body_bytes += 64;
}
static void w_offset(struct wire_microbatch *w)
{
    w->tensors.at[0].offset = -64;
}
static void w_dtype(struct wire_microbatch *w)
{
    w->tensors.at[0].dtype = "int32";
}
static void w_codec(struct wire_microbatch *w)
{
    w->tensors.at[0].codec = "fp16";
}
static void w_value(struct wire_microbatch *w)
{
    w->tensors.at[0].value++;
}
static void w_none(struct wire_microbatch *w)
{
    w->tensors.n = 0;
}
static void w_generation(struct wire_microbatch *w)
{
    w->generation = 0;
}
static void w_backward(struct wire_microbatch *w)
{
    w->backward = true;
}

static void crooked_microbatches_are_cut_off(void **state)
{
    (void)state;
    static const struct wrong cases[] = {{"count over the load", "LIMIT", w_count}, {"no samples", "LIMIT", w_zero},
        {"dims", "FORMAT", w_dims}, {"rank", "FORMAT", w_rank}, {"a terabyte", "FORMAT", w_bytes},
        {"body", "LIMIT", w_body}, {"offset", "FORMAT", w_offset}, {"dtype", "FORMAT", w_dtype},
        {"codec", "FORMAT", w_codec}, {"value", "FORMAT", w_value}, {"no tensors", "FORMAT", w_none},
        {"old generation", NULL, w_generation}, {"backward", "FORMAT", w_backward}, {"none wrong", NULL, NULL}};
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    char real[33];
    memcpy(real, b->agents[0].id, sizeof real);
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct bed_plan p = bed_two_stages;
        p.generation = 10 + (int64_t)i;
        /* Agent 0's control goes nowhere for a moment: only agent 1 is told to load. */
        struct chan *control = b->agents[0].control;
        struct stranger s, out;
        b->n_loaded = b->n_failed = 0;
        p.source = 2; /* nobody */
        p.agent[0] = 2;
        snprintf(b->agents[2].id, sizeof b->agents[2].id, "%s", "ffffffffffffffffffffffffffffffff");
        snprintf(b->agents[2].url, sizeof b->agents[2].url, "mem://nobody");
        b->agents[2].control = b->agents[1].control; /* answers EXISTS */
        bed_load(b, &p, NULL);
        b->agents[2].control = NULL;
        assert_ptr_equal(control, b->agents[0].control);
        uint8_t in_ticket[16], out_ticket[16];
        memset(in_ticket, 17, 16); /* edges sorted by (from, to): -1->0, 0->1, 1->-1 */
        memset(out_ticket, 18, 16);
        say_hello(b, &s,
            &(struct wire_hello){
                .agent = b->agents[2].id, .generation = p.generation, .edge = 1, .ticket = {in_ticket, 16}});
        say_hello(b, &out,
            &(struct wire_hello){
                .agent = b->agents[2].id, .generation = p.generation, .edge = 2, .ticket = {out_ticket, 16}});
        BED_UNTIL(b, 1000, s.credits == p.credits);
        struct wire_credit credit = {.generation = p.generation, .edge = 2, .n = 2};
        chan_send(out.chan, WIRE_TYPE_credit, &credit);
        BED_UNTIL(b, 1000, b->n_loaded == 2);
        int32_t v = -1;
        for (int32_t k = 0; k < b->graph->nodes[p.last[0]].n_out; k++)
            v = b->graph->nodes[p.last[0]].out[k];
        struct shape shape = b->shapes.of[v];
        int64_t dims[YK_MAX_RANK];
        memcpy(dims, shape.dims, sizeof dims);
        struct wire_tensor t = {.value = v,
            .dtype = "float32",
            .dims = {dims, (size_t)shape.rank},
            .codec = "raw",
            .bytes = shape_bytes(&shape)};
        int64_t body = (t.bytes + 63) / 64 * 64;
        struct wire_microbatch w = {
            .generation = p.generation, .edge = 1, .count = 5, .tensors = {&t, 1}, .body_bytes = body};
        if (cases[i].change)
            cases[i].change(&w);
        void *zeros = calloc(1, (size_t)body);
        struct net_iov iov = {zeros, (size_t)body};
        chan_stream(s.chan, CHAN_DATA, WIRE_TYPE_microbatch, &w, &iov, 1, NULL, NULL);
        if (cases[i].change) {
            BED_UNTIL(b, 1000, s.closed);
            BED_UNTIL(b, 1000, b->n_failed >= 1);
            if (cases[i].error && strcmp(b->failed_error, cases[i].error) != 0)
                fail_msg("%s: %s '%s'", cases[i].what, b->failed_error, b->failed_text);
        } else {
            net_mem_run_for(b->net, 100000);
            assert_false(s.closed);
            assert_int_equal(b->n_failed, 0);
            assert_int_equal(out.streams, 1);
            assert_int_equal(s.credits, p.credits + 1);
        }
        if (s.chan)
            chan_close(s.chan, false);
        if (out.chan)
            chan_close(out.chan, false);
        free(zeros);
        bed_unload(b, &p);
    }
    bed_close(b);
}

static void bad_runs_are_refused(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    int64_t odd[] = {1};
    const struct wire_run bad[] = {{.data = "../etc"}, {.data = "none"}, {.microbatch = 6}, {.first = 40},
        {.count = 1000}, {.first = -1}, {.done = {odd, 1}}, {.data = "xyz", .blob = true}};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        b->n_done = 0;
        b->done_error[0] = 0;
        bed_run(b, &bed_two_stages, &bad[i]);
        BED_UNTIL(b, 2000, b->n_done == 1);
        assert_true(b->done_error[0] && b->done_text[0]);
    }
    assert_int_equal(b->n_results, 0);
    b->n_done = 0;
    bed_run(b, &bed_two_stages, &(struct wire_run){.timeout_ms = 60000});
    bed_run(b, &bed_two_stages, &(struct wire_run){0}); /* one at a time */
    BED_UNTIL(b, 5000, b->n_done == 2);
    assert_int_equal(b->n_results, 8);
    net_mem_set_link(b->net, "agent1", 500000, 0);
    b->n_done = 0;
    bed_run(b, &bed_two_stages, &(struct wire_run){.timeout_ms = 300});
    BED_UNTIL(b, 1000, b->n_done == 1);
    assert_string_equal(b->done_error, "TIMEOUT");
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_versions_are_refused),
        cmocka_unit_test(an_older_term_is_not_obeyed),
        cmocka_unit_test(a_silent_scheduler_is_redialled),
        cmocka_unit_test(a_short_break_keeps_the_pipeline),
        cmocka_unit_test(a_lost_peer_is_told),
        cmocka_unit_test(bad_loads_are_undone),
        cmocka_unit_test(too_large_for_the_budget),
        cmocka_unit_test(a_load_ends_in_time),
        cmocka_unit_test(wrong_blobs),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(vanishing_clients_leave_nothing),
        cmocka_unit_test(crooked_microbatches_are_cut_off),
        cmocka_unit_test(bad_runs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
