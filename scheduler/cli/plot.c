#include "scheduler/cli/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define WIDTH 900.0
#define HEIGHT 420.0
#define LEFT 64.0
#define RIGHT 52.0
#define TOP 40.0
#define BOTTOM 44.0
#define COLUMNS 760
#define TICKS 5

struct frame {
    double lo, hi; /* of y */
    int64_t n;
};

static double place_x(const struct frame *f, double step)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (f->n > 1 ? step / (double)(f->n - 1) : 0.5);
}

static double place_y(double lo, double hi, double y)
{
    return TOP + (HEIGHT - TOP - BOTTOM) * (hi > lo ? (hi - y) / (hi - lo) : 0.5);
}

/* The next of 1, 2, 5 times a power of ten. */
static double round_step(double x)
{
    double power = pow(10, floor(log10(x))), m = x / power;
    return power * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static void axes(const struct plot *p, struct frame *f, struct yk_buf *out)
{
    if (f->hi <= f->lo) {
        double room = f->lo != 0 ? fabs(f->lo) / 2 : 0.5;
        f->lo -= room;
        f->hi += room;
    }
    double step = round_step((f->hi - f->lo) / TICKS);
    f->lo = floor(f->lo / step) * step;
    f->hi = ceil(f->hi / step) * step;
    for (int i = 0; f->lo + i * step <= f->hi + step / 2; i++) {
        double y = f->lo + i * step, at = place_y(f->lo, f->hi, y);
        yk_buf_printf(out,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
            LEFT, at, WIDTH - RIGHT, at, LEFT - 6, at + 4, fabs(y) < step / 2 ? 0.0 : y);
    }
    for (int i = 0; i <= TICKS && f->n > 1; i++) {
        int64_t at = (f->n - 1) * i / TICKS;
        yk_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%" PRId64 "</text>\n",
            place_x(f, (double)at), HEIGHT - BOTTOM + 18, at + 1);
    }
    yk_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">step</text>\n", WIDTH / 2, HEIGHT - 8);
    for (int i = 0; i <= 5 && p->n_marks > 0; i++)
        yk_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#d55e00\">%.1f</text>\n", WIDTH - RIGHT + 6,
            place_y(0, 1, i / 5.0) + 4, i / 5.0);
}

static void points(const struct plot *p, const struct frame *f, int64_t stride, struct yk_buf *out)
{
    yk_buf_printf(out, "<path fill=\"none\" stroke=\"#56b4e9\" stroke-width=\"0.8\" d=\"");
    bool open = false;
    for (int64_t first = 0; first < p->n; first += stride) {
        double lo = INFINITY, hi = -INFINITY;
        for (int64_t i = first; i < YK_MIN(first + stride, p->n); i++)
            if (isfinite(p->y[i])) {
                lo = fmin(lo, (double)p->y[i]);
                hi = fmax(hi, (double)p->y[i]);
            }
        if (lo > hi)
            continue;
        double x = place_x(f, (double)first);
        yk_buf_printf(out, "%c%.2f %.2f", open ? 'L' : 'M', x, place_y(f->lo, f->hi, hi));
        if (hi > lo)
            yk_buf_printf(out, "L%.2f %.2f", x, place_y(f->lo, f->hi, lo));
        open = true;
    }
    yk_buf_printf(out, "\"/>\n");
}

/* The mean of the last 1/50 of all steps, at each column. */
static void mean(const struct plot *p, const struct frame *f, int64_t stride, struct yk_buf *out)
{
    int64_t window = YK_MAX(p->n / 50, 1);
    double sum = 0;
    int64_t count = 0;
    yk_buf_printf(out, "<path fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\" d=\"");
    bool open = false;
    for (int64_t i = 0; i < p->n; i++) {
        if (isfinite(p->y[i])) {
            sum += (double)p->y[i];
            count++;
        }
        if (i >= window && isfinite(p->y[i - window])) {
            sum -= (double)p->y[i - window];
            count--;
        }
        if (count > 0 && (i % stride == 0 || i + 1 == p->n)) {
            yk_buf_printf(out, "%c%.2f %.2f", open ? 'L' : 'M', place_x(f, (double)i),
                place_y(f->lo, f->hi, sum / (double)count));
            open = true;
        }
    }
    yk_buf_printf(out, "\"/>\n");
}

static void escaped(struct yk_buf *out, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '>' || *s == '&' || (unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
            yk_buf_printf(out, "&#%d;", *s == '<' || *s == '>' || *s == '&' ? *s : '?');
        else
            yk_buf_add(out, s, 1);
}

yk_err plot_svg(const struct plot *p, struct yk_buf *out, struct yk_diag *why)
{
    struct frame f = {INFINITY, -INFINITY, p->n};
    int64_t stride = YK_MAX((p->n + COLUMNS - 1) / COLUMNS, 1);
    for (int64_t i = 0; i < p->n; i++)
        if (isfinite(p->y[i])) {
            f.lo = fmin(f.lo, (double)p->y[i]);
            f.hi = fmax(f.hi, (double)p->y[i]);
        }
    if (f.lo > f.hi)
        f.lo = f.hi = 0;
    yk_buf_printf(out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
        "font-size=\"11\" fill=\"#333\">\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n"
        "<text x=\"%.1f\" y=\"20\" font-size=\"14\">",
        WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    escaped(out, p->title);
    yk_buf_printf(out, "</text>\n");
    axes(p, &f, out);
    points(p, &f, stride, out);
    mean(p, &f, stride, out);
    for (int64_t i = 0; i < p->n_marks; i++)
        if (isfinite(p->marks[i])) {
            double x = place_x(&f, (double)YK_MIN((i + 1) * p->steps_per_mark - 1, YK_MAX(p->n - 1, 0)));
            yk_buf_printf(out,
                "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"4\" fill=\"#d55e00\"><title>epoch %" PRId64
                ": %.4f</title></circle>\n",
                x, place_y(0, 1, (double)p->marks[i]), i + 1, (double)p->marks[i]);
        }
    yk_buf_printf(out, "</svg>\n");
    return out->failed ? yk_fail(why, YK_NOMEM, "no memory for a picture") : YK_OK;
}
