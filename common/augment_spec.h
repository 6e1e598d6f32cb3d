/* Which changes of training images a text asks for: "random-resized-crop[:SMALLEST],pad-crop:PIXELS,flip", each at most
 * once, applied in the order given (a resized crop is of the file's pixels and comes first). Thread: any. */
#ifndef YK_AUGMENT_SPEC_H
#define YK_AUGMENT_SPEC_H

#include "common/yk.h"

#define AUGMENT_PAD_LIMIT 4096

struct augment {
    bool flip;
    bool flip_first; /* before the pad-crop */
    int64_t pad;     /* pad-crop: pixels of black on each side, then a crop of the old size; 0: none */
    double smallest; /* random-resized-crop: share of the area, to 1; 0: none */
};

/* Errors: YK_INVAL, naming the part and what is known; out is untouched. "" and "none" are no change. */
yk_err augment_spec_parse(const char *text, struct augment *out, struct yk_diag *why);
bool augment_spec_any(const struct augment *a); /* NULL allowed */

#endif
