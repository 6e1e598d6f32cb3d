/* Changes of training images that are drawn anew each epoch: pad-crop, horizontal flip, random resized crop, as
 * torchvision's RandomCrop(size, padding), RandomHorizontalFlip and RandomResizedCrop do them. The draws are a function
 * of (seed, epoch, sample) and of the kind alone: order, threads, reading ahead and what else is asked for change no
 * bit. Thread: any. */
#ifndef YK_AUGMENT_H
#define YK_AUGMENT_H

#include "common/augment_spec.h"

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

void augment_draw(const struct augment *a, const struct augment_key *k, struct augment_draw *out);
/* The part of an image of height x width that a random resized crop takes: top, left, height, width. Sides in a ratio
 * of 3/4 to 4/3. Source: torchvision 0.14, RandomResizedCrop.get_params. */
void augment_box(const struct augment *a, const struct augment_key *k, int64_t height, int64_t width, int64_t box[4]);
/* from and to do not overlap. */
void augment_apply(const struct augment *a, const struct augment_draw *draw, const struct augment_view *view,
    const void *from, void *to);

#endif
