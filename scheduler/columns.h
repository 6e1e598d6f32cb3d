/* What the listings show, once for REST, the command and the tests: a listing is a view of the database, its JSON
 * objects have exactly the view's columns, and tables for people leave out the columns marked wide. */
#ifndef YK_COLUMNS_H
#define YK_COLUMNS_H

#include "common/yk.h"

enum column_kind { COLUMN_TEXT, COLUMN_INT, COLUMN_REAL, COLUMN_BOOL };

struct column {
    const char *name; /* of the view; units are in the name: _bytes, _ms, _per_s, _frac, _celsius, _at */
    enum column_kind kind;
    const char *title; /* for people */
    const char *unit;  /* "bytes", "bytes/s", "ms", "s", "frac", "time", "hash" or "": how people read it */
    bool wide;         /* not in a table for people */
};

struct columns {
    const char *listing; /* "agents": the REST path /v1/agents and `yoke agents` */
    const char *view;    /* "v_agents" */
    const struct column *at;
    int n;
};

extern const struct columns columns_all[]; /* ended by a listing of NULL */
const struct columns *columns_find(const char *listing);

#endif
