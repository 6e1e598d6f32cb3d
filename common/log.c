#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_TEXT_BYTES 2000

static struct {
    pthread_mutex_t lock;
    const char *program;
    atomic_int level;
    int fd;
    bool journal;
} logger = {.lock = PTHREAD_MUTEX_INITIALIZER, .program = "yoke", .level = LOG_INFO, .fd = STDERR_FILENO};

static const char *const names[] = {"error", "warn", "info", "debug"};
static const char *const shown[] = {"ERROR", "WARN ", "INFO ", "DEBUG"};
static const char *const priority[] = {"<3>", "<4>", "<6>", "<7>"};

/* systemd sets JOURNAL_STREAM to "device:inode" of the stream; a child whose standard error was redirected inherits the
 * variable, so only a match counts. */
static bool is_journal(int fd)
{
    const char *text = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;
    return text && sscanf(text, "%llu:%llu", &dev, &ino) == 2 && fstat(fd, &st) == 0 && st.st_dev == dev &&
           st.st_ino == ino;
}

yk_err log_open(const char *program, enum log_level level, const char *path, struct yk_diag *why)
{
    int fd = STDERR_FILENO;
    if (path) {
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0640);
        if (fd < 0) {
            int e = errno;
            return yk_fail(why, yk_err_from_errno(e), "cannot open log file '%s': %s", path, strerror(e));
        }
    }
    pthread_mutex_lock(&logger.lock);
    if (logger.fd != STDERR_FILENO)
        close(logger.fd);
    logger.fd = fd;
    logger.program = program;
    logger.journal = is_journal(fd);
    pthread_mutex_unlock(&logger.lock);
    log_set_level(level);
    return YK_OK;
}

void log_close(void)
{
    pthread_mutex_lock(&logger.lock);
    if (logger.fd != STDERR_FILENO)
        close(logger.fd);
    logger.fd = STDERR_FILENO;
    logger.journal = is_journal(STDERR_FILENO);
    pthread_mutex_unlock(&logger.lock);
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&logger.level, (int)level, memory_order_relaxed);
}

bool log_on(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&logger.level, memory_order_relaxed);
}

const char *log_level_name(enum log_level level)
{
    return names[level];
}

/* Length of the well-formed UTF-8 sequence at s, 0 if there is none. */
static size_t utf8_len(const uint8_t *s, size_t n)
{
    if (s[0] < 0x80)
        return 1;
    size_t len = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return len;
}

/* Code points that end or reorder a line on some reader: C1 controls, line and paragraph separators, bidi controls. */
static bool is_unsafe(const uint8_t *s, size_t len)
{
    if (len == 1)
        return s[0] < 0x20 || s[0] == 0x7f;
    if (len == 2)
        return s[0] == 0xc2 && s[1] < 0xa0;
    if (len == 3 && s[0] == 0xe2)
        return (s[1] == 0x80 && (s[2] >= 0xa8 && s[2] <= 0xae)) || (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9);
    return false;
}

size_t log_escape(const char *text, size_t len, char *out, size_t size)
{
    const uint8_t *s = (const uint8_t *)text;
    size_t used = 0;
    for (size_t i = 0; i < len;) {
        size_t n = utf8_len(s + i, len - i);
        if (n && !is_unsafe(s + i, n)) {
            if (used + n >= size)
                break;
            memcpy(out + used, s + i, n);
            used += n;
            i += n;
            continue;
        }
        char esc[5];
        const char *known = s[i] == '\n' ? "\\n" : s[i] == '\t' ? "\\t" : s[i] == '\r' ? "\\r" : NULL;
        if (known)
            snprintf(esc, sizeof esc, "%s", known);
        else
            snprintf(esc, sizeof esc, "\\x%02x", s[i]);
        size_t k = strlen(esc);
        if (used + k >= size)
            break;
        memcpy(out + used, esc, k);
        used += k;
        i++;
    }
    if (size)
        out[used] = 0;
    return used;
}

static void write_all(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* a log that cannot be written must not stop the work */
        data += n;
        len -= (size_t)n;
    }
}

static void log_v(enum log_level level, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void log_v(enum log_level level, const char *fmt, va_list ap)
{
    if (!log_on(level))
        return;
    int saved = errno;
    char text[LOG_TEXT_BYTES], line[LOG_TEXT_BYTES * 4 + 256];
    int n = vsnprintf(text, sizeof text, fmt, ap);
    size_t len = n < 0 ? 0 : YK_MIN((size_t)n, sizeof text - 1);

    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    pthread_mutex_lock(&logger.lock);
    size_t used = (size_t)snprintf(line, 256,
        "%s%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s %.64s: ", logger.journal ? priority[level] : "", tm.tm_year + 1900,
        tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000000, shown[level],
        logger.program);
    used += log_escape(text, len, line + used, sizeof line - used - 32);
    if ((size_t)YK_MAX(n, 0) > len)
        used += (size_t)snprintf(line + used, 32, " [cut]");
    line[used++] = '\n';
    write_all(logger.fd, line, used);
    pthread_mutex_unlock(&logger.lock);
    errno = saved;
}

void log_at(enum log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_v(level, fmt, ap);
    va_end(ap);
}

#define LOG_FUNCTION(name, level)         \
    void log_##name(const char *fmt, ...) \
    {                                     \
        va_list ap;                       \
        va_start(ap, fmt);                \
        log_v(level, fmt, ap);            \
        va_end(ap);                       \
    }
LOG_FUNCTION(error, LOG_ERROR)
LOG_FUNCTION(warn, LOG_WARN)
LOG_FUNCTION(info, LOG_INFO)
LOG_FUNCTION(debug, LOG_DEBUG)
