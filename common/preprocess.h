/* What becomes of an image before a model sees it: resize, centre crop, channels, range, normalisation, layout. Given
 * by flags or as JSON, and kept with a model as JSON; agent/image*.c does it.
 *   {"resize": 256 | [H, W], "crop": 224 | [H, W], "interpolation": "bilinear", "channels": "RGB", "layout": "NCHW",
 *    "range": 1, "mean": [..], "std": [..]}   every key optional; "preset": "imagenet" stands for the usual ones.
 * A pixel byte b becomes (b / 255 * range - mean[c]) / std[c]. */
#ifndef YK_PREPROCESS_H
#define YK_PREPROCESS_H

#include "common/json.h"

#define PREPROCESS_SIDE_LIMIT 16384
#define PREPROCESS_JSON_LIMIT ((size_t)64 << 10)

enum preprocess_filter { PREPROCESS_BILINEAR, PREPROCESS_NEAREST, PREPROCESS_BICUBIC };
enum preprocess_channels { PREPROCESS_AUTO, PREPROCESS_RGB, PREPROCESS_BGR, PREPROCESS_GRAY }; /* auto: as the input */
enum preprocess_layout { PREPROCESS_ANY, PREPROCESS_NCHW, PREPROCESS_NHWC };                   /* any: as the input */

struct preprocess {
    int64_t resize[2]; /* height, width; width 0: height is the shorter side's length; 0 0: none */
    int64_t crop[2];   /* height, width; 0 0: none */
    enum preprocess_filter filter;
    enum preprocess_channels channels;
    enum preprocess_layout layout;
    double range;
    double mean[3], std[3];
    int n_mean, n_std; /* 0, 1 (all channels) or 3 */
};

void preprocess_init(struct preprocess *p); /* nothing is asked for: pixels of 0..1 */
/* The keys of o replace what p has. Errors: YK_INVAL, and p may be changed. */
yk_err preprocess_parse(const struct json *o, struct preprocess *p, struct yk_diag *why);
yk_err preprocess_parse_text(const char *text, size_t len, struct preprocess *p, struct yk_diag *why);
/* One setting as text, as flags give it: "256", "224x320", "bicubic", "0.5,0.5,0.5"; key as in the JSON. */
yk_err preprocess_set(struct preprocess *p, const char *key, const char *text, struct yk_diag *why);
/* One object with every key that differs from preprocess_init. */
void preprocess_put(const struct preprocess *p, struct json_out *out);
/* Checks o and writes it again with preprocess_put; NULL for NULL or null. *text: free(). */
yk_err preprocess_normal(const struct json *o, char **text, struct yk_diag *why);
/* The size that an image of height x width is resized to: torchvision's rule for the shorter side. */
void preprocess_resized(const struct preprocess *p, int64_t height, int64_t width, int64_t *out_h, int64_t *out_w);

#endif
