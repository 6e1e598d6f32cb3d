#include "common/augment_spec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST 0.08

/* part is one word with, after a colon, its value. */
static yk_err use_part(char *part, struct augment *a, struct yk_diag *why)
{
    char *value = strchr(part, ':'), *end = NULL;
    if (value)
        *value++ = 0;
    errno = 0;
    if (strcmp(part, "flip") == 0) {
        if (value)
            return yk_fail(why, YK_INVAL, "augment: flip takes no value, not '%s'", value);
        if (a->flip)
            return yk_fail(why, YK_INVAL, "augment: flip is given twice");
        a->flip = true;
        a->flip_first = a->pad == 0;
        return YK_OK;
    }
    if (strcmp(part, "pad-crop") == 0) {
        long n = value && *value >= '0' && *value <= '9' ? strtol(value, &end, 10) : 0;
        if (n < 1 || n > AUGMENT_PAD_LIMIT || errno || *end)
            return yk_fail(why, YK_INVAL, "augment: pad-crop%s%s: a number of pixels from 1 to %d, as pad-crop:4",
                value ? ":" : "", value ? value : "", AUGMENT_PAD_LIMIT);
        if (a->pad)
            return yk_fail(why, YK_INVAL, "augment: pad-crop is given twice");
        a->pad = n;
        return YK_OK;
    }
    if (strcmp(part, "random-resized-crop") == 0) {
        double share = value ? strtod(value, &end) : SMALLEST;
        if (value && (end == value || *end || !(share > 0 && share <= 1)))
            return yk_fail(why, YK_INVAL,
                "augment: random-resized-crop:%s: the smallest share of the area, above 0 and up to 1", value);
        if (a->smallest > 0)
            return yk_fail(why, YK_INVAL, "augment: random-resized-crop is given twice");
        if (a->pad || a->flip)
            return yk_fail(why, YK_INVAL, "augment: random-resized-crop comes first: it works on the file's pixels");
        a->smallest = share;
        return YK_OK;
    }
    return yk_fail(why, YK_INVAL,
        "augment: '%s' is not known (known: random-resized-crop[:SMALLEST], pad-crop:PIXELS, flip)", part);
}

yk_err augment_spec_parse(const char *text, struct augment *out, struct yk_diag *why)
{
    struct augment a = {0};
    yk_err err = YK_OK;
    if (*text && strcmp(text, "none") != 0) {
        char *copy = yk_xstrdup(text), *part = copy;
        while (!err && part) {
            char *comma = strchr(part, ',');
            if (comma)
                *comma++ = 0;
            err = use_part(part, &a, why);
            part = comma;
        }
        free(copy);
    }
    if (!err)
        *out = a;
    return err;
}

bool augment_spec_any(const struct augment *a)
{
    return a && (a->flip || a->pad || a->smallest > 0);
}
