/* Changes of training images that are drawn anew each epoch: pad-crop, horizontal flip, random resized crop, as
 * torchvision's RandomCrop(size, padding), RandomHorizontalFlip and RandomResizedCrop do them. The draws are a function
 * of (seed, epoch, sample) and of the kind alone: order, threads, reading ahead and what else is asked for change no
 * bit. Given as text: "random-resized-crop[:SMALLEST],pad-crop:PIXELS,flip", each at most once, applied in the order
 * given (a resized crop is of the file's pixels and comes first). Thread: any. */
#ifndef YK_AUGMENT_H
#define YK_AUGMENT_H

#include "common/yk.h"

#define AUGMENT_PAD_LIMIT 4096

struct augment {
    bool flip;
    bool flip_first; /* before the pad-crop */
    int64_t pad;     /* pad-crop: pixels of black on each side, then a crop of the old size; 0: none */
    double smallest; /* random-resized-crop: share of the area, to 1; 0: none */
};

struct augment_key {
    uint64_t seed;
    int64_t epoch, sample;
};

struct augment_draw {
    int64_t down, right; /* what the crop's corner is moved by, -pad..pad */
    bool flip;
};

struct augment_view { /* how the pixels of a sample lie */
    int64_t channels, height, width;
    bool nhwc;         /* else NCHW */
    size_t element;    /* bytes of a value: 1 or 4 */
    const void *black; /* the values of a black pixel, by channel */
};

/* Errors: YK_INVAL, naming the part and what is known; out is untouched. "" and "none" are no change. */
yk_err augment_parse(const char *text, struct augment *out, struct yk_diag *why);
bool augment_any(const struct augment *a); /* NULL allowed */
void augment_draw(const struct augment *a, const struct augment_key *k, struct augment_draw *out);
/* The part of an image of height x width that a random resized crop takes: top, left, height, width. Sides in a ratio
 * of 3/4 to 4/3. Source: torchvision 0.14, RandomResizedCrop.get_params. */
void augment_box(const struct augment *a, const struct augment_key *k, int64_t height, int64_t width, int64_t box[4]);
/* from and to do not overlap. */
void augment_apply(const struct augment *a, const struct augment_draw *draw, const struct augment_view *view,
    const void *from, void *to);

#endif
