/* Listings for people: an array of JSON objects as an aligned table. Units are in the names of the keys, as everywhere:
 * *_bytes and bytes_per_s are scaled, *_frac becomes per cent, *_at a local time; numbers stand right. */
#ifndef YK_TABLE_H
#define YK_TABLE_H

#include "common/json.h"
#include "scheduler/columns.h"

#include <stdio.h>

/* Rows as a table with the listing's titles, without its wide columns; listing NULL: every key as it is. empty: said if
 * there are no rows. */
void table_print(const struct json *rows, const struct columns *listing, const char *empty, FILE *f);
/* "1.5 GB", "40 MB/s" with suffix "/s"; SI, as links are sold. out: 32 bytes. */
void table_scaled(double value, const char *suffix, char *out);
/* One value as a cell. out: size bytes. */
void table_cell(const char *key, const struct json *value, char *out, size_t size);

#endif
