/* One generic walker over tables of fields; the tables are made from wire_list.h.
 *
 * Encoding uses msgpack-c's packer. Decoding walks the bytes with our own cursor: msgpack-c's unpacker reserves memory
 * by what a length field claims, and a peer must not be able to choose that. Here an array of n items is allocated only
 * after n <= bytes left and n <= items left, from an arena that is limited to ARENA_PER_BYTE times the input.
 *
 * For older and newer minors: absent and nil fields are zero, unknown keys are passed over, and an integer is taken
 * where a double is due. A key that comes twice is refused: readers would disagree on which one counts. */
#include "common/wire.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 8
#define MAX_ITEMS (1 << 20)
/* What our own encoder writes needs at most 12 (a text of one letter in a list: 2 bytes become a pointer and 16 bytes);
 * a list of empty maps would need up to 110 a byte, and no sender has a reason for that. */
#define ARENA_PER_BYTE 24
#define ARENA_BASE 16384

enum kind { KIND_I64, KIND_F64, KIND_BOOL, KIND_STR, KIND_BIN, KIND_STRS, KIND_I64S, KIND_F64S, KIND_ONE, KIND_LIST };

struct table;

struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    const struct table *(*sub)(void); /* KIND_ONE, KIND_LIST */
};

struct table {
    const char *name;
    size_t size;
    const struct field *fields;
    size_t n_fields;
};

/* The C layout of every list field; only the pointer and the count are touched generically. */
struct list {
    void *at;
    size_t n;
};

#define SUB_I64(sub) NULL
#define SUB_F64(sub) NULL
#define SUB_BOOL(sub) NULL
#define SUB_STR(sub) NULL
#define SUB_BIN(sub) NULL
#define SUB_STRS(sub) NULL
#define SUB_I64S(sub) NULL
#define SUB_F64S(sub) NULL
#define SUB_ONE(sub) table_##sub
#define SUB_LIST(sub) table_##sub
#define ROW(kind, name, sub) {#name, KIND_##kind, offsetof(OWNER, name), SUB_##kind(sub)},

/* A function per struct gives its fields a scope in which OWNER names it. */
#define DEFINE_TABLE(struct_name, list)                                                            \
    static const struct table *table_##struct_name(void)                                           \
    {                                                                                              \
        typedef struct wire_##struct_name OWNER;                                                   \
        static const struct field fields[] = {list(ROW)};                                          \
        static const struct table table = {#struct_name, sizeof(OWNER), fields, YK_COUNT(fields)}; \
        _Static_assert(YK_COUNT(fields) <= 64, "a bit per field in unpack_struct");                \
        return &table;                                                                             \
    }
#define DEFINE_PART(part) DEFINE_TABLE(part, WIRE_PART_##part)
#define DEFINE_MESSAGE(id, msg) DEFINE_TABLE(msg, WIRE_##msg)
WIRE_PARTS(DEFINE_PART)
WIRE_MESSAGES(DEFINE_MESSAGE)

static const struct table *message_table(int type)
{
    switch (type) {
#define X(id, msg) \
    case id:       \
        return table_##msg();
        WIRE_MESSAGES(X)
#undef X
    default:
        return NULL;
    }
}

const char *wire_name(int type)
{
    const struct table *t = message_table(type);
    return t ? t->name : NULL;
}

/* ---- encode ---- */

static int write_buf(void *arg, const char *data, size_t len)
{
    struct yk_buf *b = arg;
    yk_buf_add(b, data, len);
    return b->failed ? -1 : 0;
}

static void pack_str(msgpack_packer *pk, const char *s)
{
    size_t len = s ? strlen(s) : 0;
    msgpack_pack_str(pk, len);
    msgpack_pack_str_body(pk, s ? s : "", len);
}

static void pack_struct(msgpack_packer *pk, const struct table *t, const void *base)
{
    msgpack_pack_map(pk, t->n_fields);
    for (size_t i = 0; i < t->n_fields; i++) {
        const struct field *f = &t->fields[i];
        const void *at = (const char *)base + f->offset;
        const struct list *list = at;
        pack_str(pk, f->name);
        switch (f->kind) {
        case KIND_I64:
            msgpack_pack_int64(pk, *(const int64_t *)at);
            break;
        case KIND_F64:
            msgpack_pack_double(pk, *(const double *)at);
            break;
        case KIND_BOOL:
            *(const bool *)at ? msgpack_pack_true(pk) : msgpack_pack_false(pk);
            break;
        case KIND_STR:
            pack_str(pk, *(const char *const *)at);
            break;
        case KIND_BIN:
            msgpack_pack_bin(pk, list->n);
            if (list->n)
                msgpack_pack_bin_body(pk, list->at, list->n);
            break;
        case KIND_ONE:
            pack_struct(pk, f->sub(), at);
            break;
        default:
            msgpack_pack_array(pk, list->n);
            for (size_t k = 0; k < list->n; k++) {
                if (f->kind == KIND_STRS)
                    pack_str(pk, ((const char **)list->at)[k]);
                else if (f->kind == KIND_I64S)
                    msgpack_pack_int64(pk, ((const int64_t *)list->at)[k]);
                else if (f->kind == KIND_F64S)
                    msgpack_pack_double(pk, ((const double *)list->at)[k]);
                else
                    pack_struct(pk, f->sub(), (const char *)list->at + k * f->sub()->size);
            }
        }
    }
}

yk_err wire_encode(enum wire_type type, const void *msg, struct yk_buf *out)
{
    const struct table *t = message_table((int)type);
    msgpack_packer pk;
    if (!t)
        return YK_UNSUPPORTED;
    msgpack_packer_init(&pk, out, write_buf);
    pack_struct(&pk, t, msg);
    return out->failed ? YK_NOMEM : YK_OK;
}

/* ---- decode ---- */

struct cursor {
    const uint8_t *at, *end;
    struct yk_arena *arena;
    int64_t items; /* left of MAX_ITEMS */
    struct yk_diag *why;
};

enum item_kind { ITEM_NIL, ITEM_BOOL, ITEM_INT, ITEM_FLOAT, ITEM_STR, ITEM_BIN, ITEM_ARRAY, ITEM_MAP };

struct item {
    enum item_kind kind;
    int64_t i;
    double f;
    const uint8_t *data; /* of STR and BIN */
    size_t n;            /* bytes, or items of ARRAY, pairs of MAP */
};

static bool take_be(struct cursor *c, size_t bytes, uint64_t *out)
{
    if ((size_t)(c->end - c->at) < bytes)
        return false;
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v = v << 8 | c->at[i];
    c->at += bytes;
    *out = v;
    return true;
}

static yk_err malformed(struct cursor *c, const char *what)
{
    return yk_fail(c->why, YK_FORMAT, "message: %s", what);
}

static bool take_payload(struct cursor *c, struct item *out, enum item_kind kind, uint64_t n)
{
    out->kind = kind;
    if (n > (uint64_t)(c->end - c->at))
        return false; /* a byte for each item, at least */
    out->data = c->at;
    out->n = (size_t)n;
    if (kind == ITEM_STR || kind == ITEM_BIN)
        c->at += n;
    return true;
}

/* One item's head; the bytes of strings too. Items of arrays and maps follow and take at least a byte each. */
static yk_err take_item(struct cursor *c, struct item *out)
{
    uint64_t v = 0, n = 0;
    *out = (struct item){0};
    if (c->items-- <= 0)
        return yk_fail(c->why, YK_LIMIT, "message: more than %d items", MAX_ITEMS);
    if (!take_be(c, 1, &v))
        return malformed(c, "ends early");
    uint8_t tag = (uint8_t)v;
    bool ok = true;
    if (tag <= 0x7f || tag >= 0xe0) {
        *out = (struct item){.kind = ITEM_INT, .i = (int8_t)tag};
    } else if (tag <= 0x8f) {
        ok = take_payload(c, out, ITEM_MAP, tag & 0x0fu);
    } else if (tag <= 0x9f) {
        ok = take_payload(c, out, ITEM_ARRAY, tag & 0x0fu);
    } else if (tag <= 0xbf) {
        ok = take_payload(c, out, ITEM_STR, tag & 0x1fu);
    } else {
        switch (tag) {
        case 0xc0:
            break;
        case 0xc2:
        case 0xc3:
            *out = (struct item){.kind = ITEM_BOOL, .i = tag == 0xc3};
            break;
        case 0xc4:
        case 0xc5:
        case 0xc6:
            ok = take_be(c, (size_t)1 << (tag - 0xc4), &n) && take_payload(c, out, ITEM_BIN, n);
            break;
        case 0xca: {
            ok = take_be(c, 4, &v);
            uint32_t bits = (uint32_t)v;
            float f;
            memcpy(&f, &bits, sizeof f);
            *out = (struct item){.kind = ITEM_FLOAT, .f = (double)f};
            break;
        }
        case 0xcb:
            ok = take_be(c, 8, &v);
            out->kind = ITEM_FLOAT;
            memcpy(&out->f, &v, sizeof v);
            break;
        case 0xcc:
        case 0xcd:
        case 0xce:
        case 0xcf:
            ok = take_be(c, (size_t)1 << (tag - 0xcc), &v);
            if (v > INT64_MAX)
                return malformed(c, "an integer over 2^63-1");
            *out = (struct item){.kind = ITEM_INT, .i = (int64_t)v};
            break;
        case 0xd0:
        case 0xd1:
        case 0xd2:
        case 0xd3: {
            size_t bytes = (size_t)1 << (tag - 0xd0);
            ok = take_be(c, bytes, &v);
            int shift = (int)(64 - 8 * bytes);
            *out = (struct item){.kind = ITEM_INT, .i = (int64_t)(v << shift) >> shift};
            break;
        }
        case 0xd9:
        case 0xda:
        case 0xdb:
            ok = take_be(c, (size_t)1 << (tag - 0xd9), &n) && take_payload(c, out, ITEM_STR, n);
            break;
        case 0xdc:
        case 0xdd:
            ok = take_be(c, tag == 0xdc ? 2 : 4, &n) && take_payload(c, out, ITEM_ARRAY, n);
            break;
        case 0xde:
        case 0xdf:
            ok = take_be(c, tag == 0xde ? 2 : 4, &n) && take_payload(c, out, ITEM_MAP, n);
            break;
        default:
            return malformed(c, "an item of a kind that is not used here");
        }
    }
    return ok ? YK_OK : malformed(c, "ends early");
}

/* Passes over the items inside an array or map that nobody asked for. */
static yk_err skip_inside(struct cursor *c, const struct item *item, int depth)
{
    if (item->kind != ITEM_ARRAY && item->kind != ITEM_MAP)
        return YK_OK;
    if (depth > MAX_DEPTH)
        return yk_fail(c->why, YK_LIMIT, "message: nested deeper than %d", MAX_DEPTH);
    uint64_t n = item->kind == ITEM_MAP ? 2 * (uint64_t)item->n : item->n;
    for (uint64_t i = 0; i < n; i++) {
        struct item inner;
        yk_err err = take_item(c, &inner);
        if (err || (err = skip_inside(c, &inner, depth + 1)))
            return err;
    }
    return YK_OK;
}

static yk_err wrong(struct cursor *c, const char *name)
{
    return yk_fail(c->why, YK_FORMAT, "message: field '%s' has the wrong type", name);
}

static yk_err no_memory(struct cursor *c)
{
    return yk_fail(c->why, YK_LIMIT, "message: needs more memory than its length justifies");
}

static yk_err get_str(struct cursor *c, const struct item *item, const char *name, const char **out)
{
    if (item->kind != ITEM_STR)
        return wrong(c, name);
    if (memchr(item->data, 0, item->n))
        return yk_fail(c->why, YK_FORMAT, "message: field '%s' holds a NUL byte", name);
    if (item->n == 0) {
        *out = ""; /* most forms of a stage are empty */
        return YK_OK;
    }
    *out = yk_arena_strndup(c->arena, (const char *)item->data, item->n);
    return *out ? YK_OK : no_memory(c);
}

static yk_err get_number(struct cursor *c, const struct item *item, const struct field *f, void *at)
{
    if (f->kind == KIND_I64 || f->kind == KIND_I64S) {
        if (item->kind != ITEM_INT)
            return wrong(c, f->name);
        *(int64_t *)at = item->i;
    } else {
        if (item->kind != ITEM_FLOAT && item->kind != ITEM_INT)
            return wrong(c, f->name);
        *(double *)at = item->kind == ITEM_INT ? (double)item->i : item->f;
    }
    return YK_OK;
}

static yk_err unpack_struct(struct cursor *c, const struct table *t, void *base, const struct item *map, int depth);

static void fill_empty(const struct table *t, void *base)
{
    for (size_t i = 0; i < t->n_fields; i++) {
        void *at = (char *)base + t->fields[i].offset;
        if (t->fields[i].kind == KIND_STR)
            *(const char **)at = "";
        else if (t->fields[i].kind == KIND_ONE)
            fill_empty(t->fields[i].sub(), at);
    }
}

static yk_err unpack_list(
    struct cursor *c, const struct field *f, struct list *list, const struct item *item, int depth)
{
    size_t each = f->kind == KIND_LIST ? f->sub()->size : sizeof(int64_t);
    if (item->kind != ITEM_ARRAY)
        return wrong(c, f->name);
    if ((int64_t)item->n > c->items)
        return yk_fail(c->why, YK_LIMIT, "message: more than %d items", MAX_ITEMS);
    list->at = yk_arena_alloc(c->arena, item->n ? item->n : 1, each);
    if (!list->at)
        return no_memory(c);
    list->n = item->n;
    for (size_t k = 0; k < item->n; k++) {
        void *at = (char *)list->at + k * each;
        struct item inner;
        yk_err err = take_item(c, &inner);
        if (!err && f->kind == KIND_LIST)
            err = unpack_struct(c, f->sub(), at, &inner, depth + 1);
        else if (!err && f->kind == KIND_STRS)
            err = get_str(c, &inner, f->name, at);
        else if (!err)
            err = get_number(c, &inner, f, at);
        if (err)
            return err;
    }
    return YK_OK;
}

static yk_err unpack_field(struct cursor *c, const struct field *f, void *at, int depth)
{
    struct item item;
    yk_err err = take_item(c, &item);
    if (err || item.kind == ITEM_NIL)
        return err;
    switch (f->kind) {
    case KIND_I64:
    case KIND_F64:
        return get_number(c, &item, f, at);
    case KIND_BOOL:
        if (item.kind != ITEM_BOOL)
            return wrong(c, f->name);
        *(bool *)at = item.i != 0;
        return YK_OK;
    case KIND_STR:
        return get_str(c, &item, f->name, at);
    case KIND_BIN: {
        if (item.kind != ITEM_BIN)
            return wrong(c, f->name);
        uint8_t *copy = yk_arena_alloc(c->arena, item.n ? item.n : 1, 1);
        if (!copy)
            return no_memory(c);
        memcpy(copy, item.data, item.n);
        *(struct wire_bin *)at = (struct wire_bin){copy, item.n};
        return YK_OK;
    }
    case KIND_ONE:
        return unpack_struct(c, f->sub(), at, &item, depth + 1);
    default:
        return unpack_list(c, f, at, &item, depth);
    }
}

static yk_err unpack_struct(struct cursor *c, const struct table *t, void *base, const struct item *map, int depth)
{
    uint64_t seen = 0; /* a bit per field */
    fill_empty(t, base);
    if (map->kind != ITEM_MAP)
        return yk_fail(c->why, YK_FORMAT, "message: %s is not a map", t->name);
    if (depth > MAX_DEPTH)
        return yk_fail(c->why, YK_LIMIT, "message: nested deeper than %d", MAX_DEPTH);
    for (size_t i = 0; i < map->n; i++) {
        struct item key;
        const struct field *f = NULL;
        size_t k = 0;
        yk_err err = take_item(c, &key);
        if (err)
            return err;
        if (key.kind != ITEM_STR)
            return yk_fail(c->why, YK_FORMAT, "message: %s has a key that is not text", t->name);
        for (; k < t->n_fields && !f; k++)
            if (strlen(t->fields[k].name) == key.n && memcmp(t->fields[k].name, key.data, key.n) == 0)
                f = &t->fields[k];
        if (f && seen >> (k - 1) & 1)
            return yk_fail(c->why, YK_FORMAT, "message: field '%s' comes twice", f->name);
        if (f) {
            seen |= UINT64_C(1) << (k - 1);
            err = unpack_field(c, f, (char *)base + f->offset, depth);
        } else {
            struct item ignored;
            err = take_item(c, &ignored);
            if (!err)
                err = skip_inside(c, &ignored, depth + 1);
        }
        if (err)
            return err;
    }
    return YK_OK;
}

yk_err wire_decode(int type, const uint8_t *data, size_t len, struct wire_msg *out, struct yk_diag *why)
{
    const struct table *t = message_table(type);
    if (!t)
        return yk_fail(why, YK_UNSUPPORTED, "message type %d is not known here", type);
    struct wire_msg *msg = yk_try_alloc(1, sizeof *msg);
    struct cursor c = {.at = data, .end = data + len, .items = MAX_ITEMS, .why = why};
    c.arena = msg ? yk_arena_open(ARENA_BASE + len * ARENA_PER_BYTE) : NULL;
    if (!c.arena) {
        free(msg);
        return yk_fail(why, YK_NOMEM, "no memory to decode a message");
    }
    struct item top;
    yk_err err = take_item(&c, &top);
    if (!err)
        err = unpack_struct(&c, t, &msg->as, &top, 1);
    if (!err && c.at != c.end)
        err = malformed(&c, "bytes behind its end");
    if (err) {
        yk_arena_close(c.arena);
        yk_wrap(why, err, "%s", t->name);
    } else {
        msg->type = (enum wire_type)type;
        msg->arena = c.arena;
        *out = *msg;
    }
    free(msg);
    return err;
}

void wire_free(struct wire_msg *msg)
{
    yk_arena_close(msg->arena);
    msg->arena = NULL;
}
