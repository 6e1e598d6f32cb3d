#include "scheduler/cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define BAR_CELLS 30
#define LINE_EVERY_S 5.0
#define BAR_EVERY_S 0.1

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void progress_start(struct progress *p, bool tty, const char *label)
{
    *p = (struct progress){.tty = tty, .label = label, .start_s = now_s()};
}

static void left_text(const struct progress *p, double frac, double now, char *out, size_t size)
{
    out[0] = '\0';
    if (p->still || frac <= 0.02 || now - p->start_s < 1)
        return;
    int left = (int)((now - p->start_s) * (1 - frac) / frac + 0.5);
    if (left >= 60)
        snprintf(out, size, "  %d min %02d s left", left / 60, left % 60);
    else
        snprintf(out, size, "  %d s left", left);
}

void progress_show(struct progress *p, int64_t done, int64_t total, const char *text)
{
    double now = now_s(), frac = total > 0 ? (double)done / (double)total : 0;
    if (p->last_s > 0 && now - p->last_s < (p->tty ? BAR_EVERY_S : LINE_EVERY_S))
        return;
    p->last_s = now;
    char left[48];
    left_text(p, frac, now, left, sizeof left);
    if (!p->tty) {
        fprintf(stderr, "%s: %lld of %lld%s%s%s\n", p->label, (long long)done, (long long)total, text[0] ? ", " : "",
            text, left);
        return;
    }
    char bar[BAR_CELLS + 1];
    int full = (int)(frac * BAR_CELLS + 0.5);
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < full ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    char line[1024];
    struct winsize window = {0};
    int n = snprintf(line, sizeof line, "%s [%s] %3.0f %%  %s%s", p->label, bar, 100 * frac, text, left);
    n = YK_MIN(YK_MAX(n, 0), (int)sizeof line - 1);
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1)
        n = YK_MIN(n, window.ws_col - 1); /* a line that wraps could not be erased */
    fprintf(stderr, "\r\033[K%.*s", n, line);
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->tty && p->last_s > 0)
        fprintf(stderr, "\r\033[K");
    fflush(stderr);
}
