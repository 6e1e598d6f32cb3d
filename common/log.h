/* One line per event for an operator: ISO time (UTC), level, text.
 *
 *     2026-01-31T12:00:00.123Z INFO  yoked: agent pc joined from 127.0.0.1:4711
 *
 * Control characters and invalid UTF-8 in the text are escaped, so what a peer chose cannot forge a line or drive a
 * terminal. When standard error is the journal (JOURNAL_STREAM names it), lines start with the priority prefix "<6>".
 * Log once, where the error is handled. Thread: any. Before log_open lines go to standard error at INFO. */
#ifndef YK_LOG_H
#define YK_LOG_H

#include "common/yk.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* path NULL: standard error. The file is appended to. program is borrowed for ever.
 * Errors: those of open(2), why names the path; the old destination stays. */
yk_err log_open(const char *program, enum log_level level, const char *path, struct yk_diag *why);
void log_close(void); /* back to standard error */
void log_set_level(enum log_level level);
bool log_on(enum log_level level);                /* for text that costs something to make */
const char *log_level_name(enum log_level level); /* "error" */

/* Longer texts are cut at 2000 bytes, which the line then says. */
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Copies text with what a terminal or a log reader could misread as \n, \x1b ... out is always NUL-ended; returns the
 * length written. */
size_t log_escape(const char *text, size_t len, char *out, size_t size);

#endif
