/* Messages: round trips of every one of them, bytes written down by hand, msgpack-c as an outside reader and writer,
 * and hostile input. */
#include "common/wire.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <msgpack.h>

/* ---- filling and comparing, made from the same lists ---- */

static struct yk_rng rng;
static struct yk_arena *arena;

static int64_t some_i64(void)
{
    uint64_t v = yk_rng_next(&rng);
    return (int64_t)(v >> yk_rng_below(&rng, 64)) * (yk_rng_below(&rng, 2) ? 1 : -1);
}

static double some_f64(void)
{
    switch (yk_rng_below(&rng, 6)) {
    case 0:
        return (double)NAN;
    case 1:
        return -INFINITY;
    case 2:
        return -0.0;
    default:
        return (yk_rng_unit(&rng) - 0.5) * pow(10, (double)yk_rng_below(&rng, 300));
    }
}

/* Lengths around where msgpack changes its form: 15/16, 31/32, 255/256, 65535/65536. */
static size_t some_len(void)
{
    static const size_t edges[] = {0, 1, 2, 15, 16, 31, 32, 255, 256};
    return yk_rng_below(&rng, 400) == 0 ? 65535 + (size_t)yk_rng_below(&rng, 2)
                                        : edges[yk_rng_below(&rng, YK_COUNT(edges))];
}

static const char *some_str(void)
{
    size_t n = some_len();
    char *s = yk_arena_alloc(arena, n + 1, 1);
    for (size_t i = 0; i < n; i++)
        s[i] = (char)(1 + yk_rng_below(&rng, 255));
    return s;
}

#define FILL_I64(name, sub) m->name = some_i64();
#define FILL_F64(name, sub) m->name = some_f64();
#define FILL_BOOL(name, sub) m->name = yk_rng_below(&rng, 2) != 0;
#define FILL_STR(name, sub) m->name = some_str();
#define FILL_BIN(name, sub)                                                   \
    m->name.data = (const uint8_t *)some_str();                               \
    m->name.len = strlen((const char *)m->name.data) + yk_rng_below(&rng, 2); \
    /* with the NUL, half of the times */
#define FILL_MANY(name, value)                                             \
    m->name.n = some_len();                                                \
    m->name.at = yk_arena_alloc(arena, m->name.n + 1, sizeof *m->name.at); \
    for (size_t i = 0; i < m->name.n; i++)                                 \
        m->name.at[i] = (value);
#define FILL_STRS(name, sub) FILL_MANY(name, i % 7 ? "x" : some_str())
#define FILL_I64S(name, sub) FILL_MANY(name, some_i64())
#define FILL_F64S(name, sub) FILL_MANY(name, some_f64())
#define FILL_ONE(name, sub) fill_##sub(&m->name);
#define FILL_LIST(name, sub)                                               \
    m->name.n = yk_rng_below(&rng, 4);                                     \
    m->name.at = yk_arena_alloc(arena, m->name.n + 1, sizeof *m->name.at); \
    for (size_t i = 0; i < m->name.n; i++)                                 \
        fill_##sub(&m->name.at[i]);
#define FILL(kind, name, sub) FILL_##kind(name, sub)

static bool same_f64(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

#define SAME_I64(name, sub) assert_true(a->name == b->name);
#define SAME_F64(name, sub) assert_true(same_f64(a->name, b->name));
#define SAME_BOOL(name, sub) assert_true(a->name == b->name);
#define SAME_STR(name, sub) assert_string_equal(a->name, b->name);
#define SAME_BIN(name, sub)                     \
    assert_int_equal(a->name.len, b->name.len); \
    assert_memory_equal(a->name.data, b->name.data, a->name.len);
#define SAME_MANY(name, same)               \
    assert_int_equal(a->name.n, b->name.n); \
    for (size_t i = 0; i < a->name.n; i++)  \
        assert_true(same);
#define SAME_STRS(name, sub) SAME_MANY(name, strcmp(a->name.at[i], b->name.at[i]) == 0)
#define SAME_I64S(name, sub) SAME_MANY(name, a->name.at[i] == b->name.at[i])
#define SAME_F64S(name, sub) SAME_MANY(name, same_f64(a->name.at[i], b->name.at[i]))
#define SAME_ONE(name, sub) same_##sub(&a->name, &b->name);
#define SAME_LIST(name, sub)                \
    assert_int_equal(a->name.n, b->name.n); \
    for (size_t i = 0; i < a->name.n; i++)  \
        same_##sub(&a->name.at[i], &b->name.at[i]);
#define SAME(kind, name, sub) SAME_##kind(name, sub)

#define HELPERS(part, list)                                                           \
    static void fill_##part(struct wire_##part *m)                                    \
    {                                                                                 \
        list(FILL)                                                                    \
    }                                                                                 \
    static void same_##part(const struct wire_##part *a, const struct wire_##part *b) \
    {                                                                                 \
        list(SAME)                                                                    \
    }
#define PART_HELPERS(part) HELPERS(part, WIRE_PART_##part)
#define MESSAGE_HELPERS(id, msg) HELPERS(msg, WIRE_##msg)
WIRE_PARTS(PART_HELPERS)
WIRE_MESSAGES(MESSAGE_HELPERS)

/* ---- good messages ---- */

static void every_message_comes_back(void **state)
{
    (void)state;
    yk_rng_seed(&rng, 3);
    for (int round = 0; round < 20; round++) {
#define X(id, msg)                                                           \
    {                                                                        \
        struct wire_##msg *m = calloc(1, sizeof *m);                         \
        struct yk_buf b = {0}, c = {0};                                      \
        struct wire_msg got;                                                 \
        arena = yk_arena_open(0);                                            \
        fill_##msg(m);                                                       \
        assert_int_equal(wire_encode(WIRE_TYPE_##msg, m, &b), YK_OK);        \
        assert_int_equal(wire_decode(id, b.data, b.len, &got, NULL), YK_OK); \
        assert_int_equal(got.type, WIRE_TYPE_##msg);                         \
        same_##msg(m, &got.as.msg);                                          \
        assert_int_equal(wire_encode(got.type, &got.as, &c), YK_OK);         \
        assert_int_equal(b.len, c.len);                                      \
        assert_memory_equal(b.data, c.data, b.len);                          \
        assert_true(yk_arena_bytes(got.arena) <= 16384 + 12 * b.len);        \
        wire_free(&got);                                                     \
        yk_buf_free(&b);                                                     \
        yk_buf_free(&c);                                                     \
        yk_arena_close(arena);                                               \
        free(m);                                                             \
    }
        WIRE_MESSAGES(X)
#undef X
    }
}

/* Our bytes read by msgpack-c: one map, nothing behind it, keys in the order of the list. */
static void msgpack_c_reads_every_message(void **state)
{
    (void)state;
#define NAME(kind, name, sub) #name,
#define X(id, msg)                                                                                              \
    {                                                                                                           \
        static const char *const names[] = {WIRE_##msg(NAME)};                                                  \
        struct wire_##msg *m = calloc(1, sizeof *m);                                                            \
        struct yk_buf b = {0};                                                                                  \
        arena = yk_arena_open(0);                                                                               \
        fill_##msg(m);                                                                                          \
        assert_int_equal(wire_encode(WIRE_TYPE_##msg, m, &b), YK_OK);                                           \
        msgpack_unpacked got;                                                                                   \
        size_t off = 0;                                                                                         \
        msgpack_unpacked_init(&got);                                                                            \
        assert_int_equal(msgpack_unpack_next(&got, (const char *)b.data, b.len, &off), MSGPACK_UNPACK_SUCCESS); \
        assert_int_equal(off, b.len);                                                                           \
        assert_int_equal(got.data.type, MSGPACK_OBJECT_MAP);                                                    \
        assert_int_equal(got.data.via.map.size, YK_COUNT(names));                                               \
        for (size_t i = 0; i < YK_COUNT(names); i++) {                                                          \
            msgpack_object_str key = got.data.via.map.ptr[i].key.via.str;                                       \
            assert_int_equal(key.size, strlen(names[i]));                                                       \
            assert_memory_equal(key.ptr, names[i], key.size);                                                   \
        }                                                                                                       \
        msgpack_unpacked_destroy(&got);                                                                         \
        assert_string_equal(wire_name(id), #msg);                                                               \
        yk_buf_free(&b);                                                                                        \
        yk_arena_close(arena);                                                                                  \
        free(m);                                                                                                \
    }
    WIRE_MESSAGES(X)
#undef X
#undef NAME
    assert_null(wire_name(0));
    assert_null(wire_name(65535));
}

/* A hello of version 1.0, written down by hand from the msgpack specification. It never changes: peers in the field
 * send it. */
/* clang-format off */
static const char golden[] =
    "\xde\x00\x10"
    "\xa4" "kind" "\xa7" "control"
    "\xad" "version_major" "\x01"
    "\xad" "version_minor" "\x00"
    "\xa8" "features" "\x92" "\xa4" "fp16" "\xa5" "relay"
    "\xa9" "job_kinds" "\x91" "\xa5" "infer"
    "\xa5" "agent" "\xd9\x20" "000102030405060708090a0b0c0d0e0f"
    "\xa4" "name" "\xa5" "phone"
    "\xa5" "nonce" "\xc4\x04" "\x00\xff\x10\x7f"
    "\xa4" "urls" "\x90"
    "\xa6" "device" "\x88"
        "\xaa" "class_name" "\xa5" "phone"
        "\xa2" "os" "\xa5" "linux"
        "\xa5" "cores" "\x08"
        "\xa7" "threads" "\x04"
        "\xac" "memory_bytes" "\xcf\x00\x00\x00\x01\x00\x00\x00\x00"
        "\xa8" "emulated" "\xc3"
        "\xa8" "backends" "\x91" "\x86"
            "\xa4" "name" "\xa3" "ref"
            "\xa3" "isa" "\xa7" "generic"
            "\xa5" "exact" "\xc3"
            "\xa6" "gflops" "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"
            "\xac" "gbytes_per_s" "\xcb\x40\x00\x00\x00\x00\x00\x00\x00"
            "\xa3" "ops" "\x91" "\xa4" "Relu"
        "\xa7" "refused" "\x90"
    "\xa7" "sensors" "\x86"
        "\xa4" "heat" "\xa7" "nominal"
        "\xb3" "temperature_celsius" "\xcb\x40\x45\x00\x00\x00\x00\x00\x00"
        "\xac" "battery_frac" "\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00"
        "\xa8" "charging" "\xc2"
        "\xb6" "memory_available_bytes" "\xcd\x01\x00"
        "\xa4" "load" "\xcb\x00\x00\x00\x00\x00\x00\x00\x00"
    "\xa4" "term" "\xff"
    "\xa7" "purpose" "\xa0"
    "\xa6" "ticket" "\xc4\x00"
    "\xaa" "generation" "\xcc\xc8"
    "\xa4" "edge" "\xd0\xc0";
/* clang-format on */

static void golden_hello(struct wire_hello *h)
{
    static const char *features[] = {"fp16", "relay"}, *kinds[] = {"infer"}, *ops[] = {"Relu"};
    static const uint8_t nonce[] = {0x00, 0xff, 0x10, 0x7f};
    static struct wire_backend backend;
    backend = (struct wire_backend){
        .name = "ref", .isa = "generic", .exact = true, .gflops = 1.5, .gbytes_per_s = 2, .ops = {ops, 1}};
    *h = (struct wire_hello){.kind = "control",
        .version_major = 1,
        .features = {features, 2},
        .job_kinds = {kinds, 1},
        .agent = "000102030405060708090a0b0c0d0e0f",
        .name = "phone",
        .nonce = {nonce, 4},
        .device = {.class_name = "phone",
            .os = "linux",
            .cores = 8,
            .threads = 4,
            .memory_bytes = INT64_C(1) << 32,
            .emulated = true,
            .backends = {&backend, 1}},
        .sensors = {.heat = "nominal", .temperature_celsius = 42, .battery_frac = 0.5, .memory_available_bytes = 256},
        .term = -1,
        .purpose = "",
        .generation = 200,
        .edge = -64};
}

static void hello_is_what_peers_in_the_field_send(void **state)
{
    struct wire_hello h;
    struct wire_msg got;
    struct yk_buf b = {0};
    (void)state;
    golden_hello(&h);
    assert_int_equal(wire_decode(1, (const uint8_t *)golden, sizeof golden - 1, &got, NULL), YK_OK);
    same_hello(&h, &got.as.hello);
    wire_free(&got);
    assert_int_equal(wire_encode(WIRE_TYPE_hello, &h, &b), YK_OK);
    assert_int_equal(b.len, sizeof golden - 1);
    assert_memory_equal(b.data, golden, b.len);
    yk_buf_free(&b);
}

/* ---- other minors ---- */

struct writer {
    msgpack_sbuffer buf;
    msgpack_packer pk;
};

static void writer_init(struct writer *w)
{
    msgpack_sbuffer_init(&w->buf);
    msgpack_packer_init(&w->pk, &w->buf, msgpack_sbuffer_write);
}

static void put_str(struct writer *w, const char *s)
{
    msgpack_pack_str(&w->pk, strlen(s));
    msgpack_pack_str_body(&w->pk, s, strlen(s));
}

static yk_err take(int type, struct writer *w, struct wire_msg *out, struct yk_diag *why)
{
    /* A block of exactly the size, so that a read past the end is seen. */
    uint8_t *exact = malloc(w->buf.size ? w->buf.size : 1);
    memcpy(exact, w->buf.data, w->buf.size);
    yk_err err = wire_decode(type, exact, w->buf.size, out, why);
    free(exact);
    msgpack_sbuffer_destroy(&w->buf);
    return err;
}

static void absent_fields_are_zero(void **state)
{
    struct writer w;
    struct wire_msg m;
    (void)state;
    writer_init(&w);
    msgpack_pack_map(&w.pk, 2);
    put_str(&w, "device");
    msgpack_pack_map(&w.pk, 1);
    put_str(&w, "backends");
    msgpack_pack_array(&w.pk, 2);
    msgpack_pack_map(&w.pk, 0);
    msgpack_pack_map(&w.pk, 1);
    put_str(&w, "isa");
    put_str(&w, "avx2");
    put_str(&w, "term");
    msgpack_pack_nil(&w.pk);
    assert_int_equal(take(WIRE_TYPE_hello, &w, &m, NULL), YK_OK);
    assert_string_equal(m.as.hello.kind, "");
    assert_string_equal(m.as.hello.sensors.heat, "");
    assert_string_equal(m.as.hello.device.os, "");
    assert_int_equal(m.as.hello.device.backends.n, 2);
    assert_string_equal(m.as.hello.device.backends.at[0].isa, "");
    assert_string_equal(m.as.hello.device.backends.at[1].isa, "avx2");
    assert_string_equal(m.as.hello.device.backends.at[1].name, "");
    assert_int_equal(m.as.hello.term, 0);
    assert_int_equal(m.as.hello.urls.n, 0);
    assert_int_equal(m.as.hello.nonce.len, 0);
    wire_free(&m);
    writer_init(&w);
    msgpack_pack_map(&w.pk, 0);
    assert_int_equal(take(WIRE_TYPE_load, &w, &m, NULL), YK_OK);
    assert_string_equal(m.as.load.graph, "");
    wire_free(&m);
}

static void unknown_keys_are_passed_over(void **state)
{
    struct writer w;
    struct wire_msg m;
    (void)state;
    writer_init(&w);
    msgpack_pack_map(&w.pk, 4);
    put_str(&w, "from_the_future");
    msgpack_pack_map(&w.pk, 2);
    put_str(&w, "a");
    msgpack_pack_array(&w.pk, 3);
    msgpack_pack_int(&w.pk, -7);
    msgpack_pack_nil(&w.pk);
    msgpack_pack_bin(&w.pk, 2);
    msgpack_pack_bin_body(&w.pk, "\0\1", 2);
    msgpack_pack_int(&w.pk, 5); /* keys inside may be of any kind */
    msgpack_pack_double(&w.pk, 1.5);
    put_str(&w, "seq");
    msgpack_pack_int(&w.pk, 9);
    put_str(&w, "seq2");
    put_str(&w, "se");
    put_str(&w, "term");
    msgpack_pack_int(&w.pk, 3);
    assert_int_equal(take(WIRE_TYPE_pong, &w, &m, NULL), YK_OK);
    assert_int_equal(m.as.pong.seq, 9);
    assert_int_equal(m.as.pong.term, 3);
    wire_free(&m);
}

static void numbers_of_other_widths_are_taken(void **state)
{
    struct writer w;
    struct wire_msg m;
    (void)state;
    writer_init(&w);
    msgpack_pack_map(&w.pk, 3);
    put_str(&w, "ms");
    msgpack_pack_float(&w.pk, 0.5f);
    put_str(&w, "cpu_ns_per_byte");
    msgpack_pack_uint64(&w.pk, 3);
    put_str(&w, "bytes");
    msgpack_pack_fix_int64(&w.pk, INT64_MIN);
    assert_int_equal(take(WIRE_TYPE_probe_sum, &w, &m, NULL), YK_OK);
    assert_true(m.as.probe_sum.ms == 0.5);
    assert_true(m.as.probe_sum.cpu_ns_per_byte == 3);
    assert_true(m.as.probe_sum.bytes == INT64_MIN);
    wire_free(&m);
}

/* ---- bad messages ---- */

static void refused(int type, const void *bytes, size_t len, yk_err want)
{
    struct wire_msg m = {0};
    struct yk_diag why = {{0}};
    uint8_t *exact = malloc(len ? len : 1);
    memcpy(exact, bytes, len);
    assert_int_equal(wire_decode(type, exact, len, &m, &why), want);
    assert_null(m.arena);
    assert_true(why.text[0]);
    free(exact);
}
#define REFUSED(type, text, want) refused(type, text, sizeof text - 1, want)

static void wrong_types_are_refused(void **state)
{
    (void)state;
    REFUSED(WIRE_TYPE_pong, "", YK_FORMAT);
    REFUSED(WIRE_TYPE_pong, "\x90", YK_FORMAT);                            /* not a map */
    REFUSED(WIRE_TYPE_pong, "\x81\x01\x01", YK_FORMAT);                    /* a key that is no text */
    REFUSED(WIRE_TYPE_pong, "\x81\xa3seq\xa1x", YK_FORMAT);                /* text for a number */
    REFUSED(WIRE_TYPE_pong, "\x81\xa3seq\xcb\0\0\0\0\0\0\0\0", YK_FORMAT); /* a double for an integer */
    REFUSED(WIRE_TYPE_pong, "\x81\xa3seq\xcf\xff\xff\xff\xff\xff\xff\xff\xff", YK_FORMAT);
    REFUSED(WIRE_TYPE_pong, "\x82\xa3seq\x01\xa3seq\x02", YK_FORMAT); /* twice */
    REFUSED(WIRE_TYPE_pong, "\x80\x00", YK_FORMAT);                   /* bytes behind */
    REFUSED(WIRE_TYPE_pong, "\x81\xa1z\xc1", YK_FORMAT);              /* never used by msgpack */
    REFUSED(WIRE_TYPE_pong, "\x81\xa1z\xd4\x01\x01", YK_FORMAT);      /* extension types */
    REFUSED(WIRE_TYPE_leave,
        "\x81\xa4text\xa3"
        "a\0b",
        YK_FORMAT); /* NUL in a text */
    REFUSED(WIRE_TYPE_leave, "\x81\xa4text\xc4\x01z", YK_FORMAT);
    REFUSED(WIRE_TYPE_run,
        "\x81\xa4"
        "done\x91\xa0",
        YK_FORMAT);
    REFUSED(WIRE_TYPE_run,
        "\x81\xa4"
        "done\x80",
        YK_FORMAT);
    REFUSED(WIRE_TYPE_run,
        "\x81\xa4"
        "blob\x01",
        YK_FORMAT);
    REFUSED(WIRE_TYPE_load, "\x81\xa6stages\x91\x01", YK_FORMAT);
    REFUSED(0, "\x80", YK_UNSUPPORTED);
    REFUSED(6, "\x80", YK_UNSUPPORTED);
    REFUSED(65535, "\x80", YK_UNSUPPORTED);
    REFUSED(-1, "\x80", YK_UNSUPPORTED);
}

static void every_cut_is_refused(void **state)
{
    struct yk_buf b = {0};
    struct wire_load *m = calloc(1, sizeof *m);
    (void)state;
    for (size_t n = 0; n < sizeof golden - 1; n++)
        refused(WIRE_TYPE_hello, golden, n, YK_FORMAT);
    yk_rng_seed(&rng, 5);
    arena = yk_arena_open(0);
    do {
        fill_load(m);
        b.len = 0;
        assert_int_equal(wire_encode(WIRE_TYPE_load, m, &b), YK_OK);
    } while (b.len < 1000 || b.len > 20000);
    for (size_t n = 0; n < b.len; n++)
        refused(WIRE_TYPE_load, b.data, n, YK_FORMAT);
    yk_buf_free(&b);
    yk_arena_close(arena);
    free(m);
}

/* Lengths that claim far more than is there must not make us allocate. The address sanitizer would stop at 4 GiB. */
static void hostile_lengths_are_refused(void **state)
{
    (void)state;
    REFUSED(WIRE_TYPE_load, "\xdf\xff\xff\xff\xff", YK_FORMAT);
    REFUSED(WIRE_TYPE_load, "\x81\xa6stages\xdd\xff\xff\xff\xff", YK_FORMAT);
    REFUSED(WIRE_TYPE_run,
        "\x81\xa4"
        "done\xdd\xff\xff\xff\xff\x01\x01",
        YK_FORMAT);
    REFUSED(WIRE_TYPE_run, "\x81\xa4mean\xdc\xff\xff", YK_FORMAT);
    REFUSED(WIRE_TYPE_leave,
        "\x81\xa4text\xdb\xff\xff\xff\xff"
        "abc",
        YK_FORMAT);
    REFUSED(WIRE_TYPE_hello,
        "\x81\xa5nonce\xc6\xff\xff\xff\xff"
        "abc",
        YK_FORMAT);
    REFUSED(WIRE_TYPE_hello, "\x81\xa1z\xdd\xff\xff\xff\xff\x01", YK_FORMAT);
}

/* A list of empty maps: a byte each on the wire, a hundred in memory. */
static void small_items_cannot_become_much_memory(void **state)
{
    size_t n = 1 << 20, head = 12;
    uint8_t *b = malloc(head + n);
    struct wire_msg m = {0};
    struct yk_diag why = {{0}};
    (void)state;
    memcpy(b,
        "\x81\xa5"
        "edges\xdd\x00\x0f\x00\x00",
        head);
    memset(b + head, 0x80, n);
    assert_int_equal(wire_decode(WIRE_TYPE_load, b, head + 0xf0000, &m, &why), YK_LIMIT);
    assert_null(m.arena);
    /* And more than 2^20 items anywhere. */
    memcpy(b,
        "\x81\xa5"
        "zzzzz\xdd\x00\x10\x00\x00",
        head);
    assert_int_equal(wire_decode(WIRE_TYPE_load, b, head + n, &m, &why), YK_LIMIT);
    memcpy(b,
        "\x81\xa4"
        "done\xdd\x00\x10\x00\x00",
        head - 1);
    memset(b + head - 1, 0, n);
    assert_int_equal(wire_decode(WIRE_TYPE_run, b, head - 1 + n, &m, &why), YK_LIMIT);
    free(b);
}

static void deep_nesting_is_refused(void **state)
{
    uint8_t b[2048];
    struct wire_msg m;
    (void)state;
    for (int depth = 1; depth < 1000; depth++) {
        size_t n = 0;
        b[n++] = 0x81;
        b[n++] = 0xa1;
        b[n++] = 'z';
        for (int i = 0; i < depth; i++)
            b[n++] = 0x91;
        b[n++] = 0x01;
        yk_err err = wire_decode(WIRE_TYPE_pong, b, n, &m, NULL);
        assert_int_equal(err, depth <= 7 ? YK_OK : YK_LIMIT);
        if (!err)
            wire_free(&m);
    }
}

/* Numbers of the messages are a promise between versions. */
static void ids_are_never_reused(void **state)
{
    static const struct {
        int id;
        const char *name;
    } promised[] = {{1, "hello"}, {2, "welcome"}, {3, "refuse"}, {4, "ping"}, {5, "pong"}, {10, "probe"},
        {11, "probe_result"}, {12, "expect"}, {13, "profile"}, {14, "profile_result"}, {20, "load"}, {21, "loaded"},
        {22, "unload"}, {23, "run"}, {24, "run_started"}, {25, "result"}, {26, "run_done"}, {27, "cancel"},
        {28, "stage_stats"}, {29, "stage_failed"}, {30, "leave"}, {40, "blob_get"}, {41, "blob"}, {42, "blob_refused"},
        {43, "microbatch"}, {44, "credit"}, {50, "probe_start"}, {51, "probe_data"}, {52, "probe_sum"}};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(promised); i++)
        assert_string_equal(wire_name(promised[i].id), promised[i].name);
}

static void every_width_of_integers(void **state)
{
    static const struct {
        const char *hex;
        int64_t value;
    } cases[] = {{"05", 5}, {"ff", -1}, {"e0", -32}, {"7f", 127}, {"ccff", 255}, {"cdffff", 65535},
        {"ceffffffff", 4294967295}, {"cf7fffffffffffffff", INT64_MAX}, {"d080", -128}, {"d18000", -32768},
        {"d280000000", INT32_MIN}, {"d38000000000000000", INT64_MIN}, {"d300000000000000ff", 255}};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        uint8_t b[16] = {0x81, 0xa2, 'i', 'd'};
        size_t n = strlen(cases[i].hex) / 2;
        struct wire_msg m;
        assert_true(yk_unhex(cases[i].hex, n, b + 4));
        assert_int_equal(wire_decode(WIRE_TYPE_blob_get, b, 4 + n, &m, NULL), YK_OK);
        assert_true(m.as.blob_get.id == cases[i].value);
        wire_free(&m);
    }
}

/* Seeded damage of good messages: refused, or decoded to something that can be written again. */
static void damage_is_decoded_or_refused(void **state)
{
    (void)state;
    yk_rng_seed(&rng, 11);
    for (int round = 0; round < 40; round++) {
#define X(id, msg)                                                          \
    {                                                                       \
        struct wire_##msg *m = calloc(1, sizeof *m);                        \
        struct yk_buf b = {0}, c = {0};                                     \
        struct wire_msg got;                                                \
        arena = yk_arena_open(0);                                           \
        fill_##msg(m);                                                      \
        assert_int_equal(wire_encode(WIRE_TYPE_##msg, m, &b), YK_OK);       \
        for (uint64_t k = 1 + yk_rng_below(&rng, 4); k; k--)                \
            b.data[yk_rng_below(&rng, b.len)] = (uint8_t)yk_rng_next(&rng); \
        if (wire_decode(id, b.data, b.len, &got, NULL) == YK_OK) {          \
            assert_int_equal(wire_encode(got.type, &got.as, &c), YK_OK);    \
            wire_free(&got);                                                \
        }                                                                   \
        yk_buf_free(&b);                                                    \
        yk_buf_free(&c);                                                    \
        yk_arena_close(arena);                                              \
        free(m);                                                            \
    }
        WIRE_MESSAGES(X)
#undef X
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back),
        cmocka_unit_test(msgpack_c_reads_every_message),
        cmocka_unit_test(hello_is_what_peers_in_the_field_send),
        cmocka_unit_test(absent_fields_are_zero),
        cmocka_unit_test(unknown_keys_are_passed_over),
        cmocka_unit_test(numbers_of_other_widths_are_taken),
        cmocka_unit_test(wrong_types_are_refused),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(hostile_lengths_are_refused),
        cmocka_unit_test(small_items_cannot_become_much_memory),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(ids_are_never_reused),
        cmocka_unit_test(every_width_of_integers),
        cmocka_unit_test(damage_is_decoded_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
