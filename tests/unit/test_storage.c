/* Both storages pass the same cases. */
#include "common/storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    struct storage *s;
    char dir[64]; /* "" for memory */
};

static int remove_tree(const char *path)
{
    DIR *d = opendir(path);
    if (!d)
        return unlink(path);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char sub[600];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(sub, sizeof sub, "%s/%s", path, e->d_name);
        remove_tree(sub);
    }
    closedir(d);
    return rmdir(path);
}

static int setup_dir(void **state)
{
    struct fixture *f = yk_xalloc(sizeof *f);
    strcpy(f->dir, "/tmp/yoke-test-storage-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_int_equal(storage_dir_open(f->dir, &f->s, NULL), YK_OK);
    *state = f;
    return 0;
}

static int setup_mem(void **state)
{
    struct fixture *f = yk_xalloc(sizeof *f);
    assert_int_equal(storage_mem_open(&f->s), YK_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    f->s->ops->close(f->s);
    if (f->dir[0])
        remove_tree(f->dir);
    free(f);
    return 0;
}

static void put(struct fixture *f, const char *key, const char *text)
{
    struct yk_diag why = {{0}};
    if (f->s->ops->put(f->s, key, text, strlen(text), &why) != YK_OK)
        fail_msg("%s", why.text);
}

static void expect(struct fixture *f, const char *key, const char *text)
{
    struct storage_map m;
    assert_int_equal(f->s->ops->map(f->s, key, &m, NULL), YK_OK);
    assert_int_equal(m.len, strlen(text));
    assert_int_equal((uintptr_t)m.data % 64, 0);
    assert_memory_equal(m.data, text, m.len);
    f->s->ops->unmap(f->s, &m);
}

static void test_put_map_remove(void **state)
{
    struct fixture *f = *state;
    struct storage_map m;
    struct yk_diag why = {{0}};
    assert_int_equal(f->s->ops->map(f->s, "identity", &m, &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "identity"));
    put(f, "identity", "one");
    put(f, "blobs/ab.cd_e-f", "two");
    put(f, "empty", "");
    expect(f, "identity", "one");
    expect(f, "blobs/ab.cd_e-f", "two");
    expect(f, "empty", "");
    put(f, "identity", "another, longer");
    expect(f, "identity", "another, longer");
    assert_int_equal(f->s->ops->map(f->s, "blobs", &m, NULL), YK_NOTFOUND);
    assert_int_equal(f->s->ops->map(f->s, "identity/x", &m, NULL), YK_NOTFOUND);
    assert_int_equal(f->s->ops->remove(f->s, "blobs"), YK_NOTFOUND);
    assert_int_equal(f->s->ops->remove(f->s, "identity"), YK_OK);
    assert_int_equal(f->s->ops->remove(f->s, "identity"), YK_NOTFOUND);
    assert_int_equal(f->s->ops->map(f->s, "identity", &m, NULL), YK_NOTFOUND);
}

static void test_view_outlives_key(void **state)
{
    struct fixture *f = *state;
    struct storage_map a, b;
    put(f, "w", "weights");
    assert_int_equal(f->s->ops->map(f->s, "w", &a, NULL), YK_OK);
    put(f, "w", "replaced");
    assert_int_equal(f->s->ops->map(f->s, "w", &b, NULL), YK_OK);
    assert_int_equal(f->s->ops->remove(f->s, "w"), YK_OK);
    assert_memory_equal(a.data, "weights", 7);
    assert_memory_equal(b.data, "replaced", 8);
    f->s->ops->unmap(f->s, &a);
    f->s->ops->unmap(f->s, &b);
}

static void test_bad_keys(void **state)
{
    struct fixture *f = *state;
    char deep[64] = "a/a/a/a/a/a/a/a/a", longer[1000];
    memset(longer, 'x', 999);
    longer[999] = 0;
    const char *bad[] = {"", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".", "..", ".tmp-1", "a/.b", "a b", "a\nb",
        "\xc3\xa9", "a\\b", "a:b", "~x", deep, longer};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct storage_map m;
        struct yk_diag why = {{0}};
        assert_int_equal(f->s->ops->put(f->s, bad[i], "x", 1, &why), YK_INVAL);
        assert_int_equal(f->s->ops->map(f->s, bad[i], &m, NULL), YK_INVAL);
        assert_int_equal(f->s->ops->remove(f->s, bad[i]), YK_INVAL);
    }
}

struct listing {
    char keys[8][64];
    int n, stop_at;
    int64_t bytes;
};

static bool on_key(void *arg, const char *key, int64_t bytes)
{
    struct listing *l = arg;
    assert_true(l->n < 8);
    snprintf(l->keys[l->n++], 64, "%s", key);
    l->bytes += bytes;
    return l->n != l->stop_at;
}

static bool has(const struct listing *l, const char *key)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->keys[i], key) == 0)
            return true;
    return false;
}

static void test_list(void **state)
{
    struct fixture *f = *state;
    put(f, "blobs/a", "1");
    put(f, "blobs/b", "22");
    put(f, "blobs/sub/c", "333");
    put(f, "profile", "4444");
    struct listing all = {0}, blobs = {0}, one = {.stop_at = 1}, none = {0}, half = {0};
    assert_int_equal(f->s->ops->list(f->s, "", on_key, &all), YK_OK);
    assert_int_equal(all.n, 4);
    assert_int_equal(all.bytes, 10);
    assert_int_equal(f->s->ops->list(f->s, "blobs/", on_key, &blobs), YK_OK);
    assert_int_equal(blobs.n, 3);
    assert_true(has(&blobs, "blobs/a") && has(&blobs, "blobs/b") && has(&blobs, "blobs/sub/c"));
    assert_int_equal(f->s->ops->list(f->s, "", on_key, &one), YK_OK);
    assert_int_equal(one.n, 1);
    assert_int_equal(f->s->ops->list(f->s, "nothing/", on_key, &none), YK_OK);
    assert_int_equal(none.n, 0);
    assert_int_equal(f->s->ops->list(f->s, "blobs/s", on_key, &half), YK_OK);
    assert_int_equal(half.n, 1);
}

/* ---- only the folder ---- */

static void test_survives_reopening(void **state)
{
    struct fixture *f = *state;
    put(f, "a/b", "kept");
    char tmp[128];
    snprintf(tmp, sizeof tmp, "%s/.tmp-99-0", f->dir); /* as a kill in the middle of a put leaves it */
    int fd = open(tmp, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    f->s->ops->close(f->s);
    assert_int_equal(storage_dir_open(f->dir, &f->s, NULL), YK_OK);
    expect(f, "a/b", "kept");
    assert_int_not_equal(access(tmp, F_OK), 0);
}

static void test_makes_folders(void **state)
{
    struct fixture *f = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/x/y/z", f->dir);
    struct storage *s;
    struct yk_diag why = {{0}};
    assert_int_equal(storage_dir_open(path, &s, &why), YK_OK);
    s->ops->close(s);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    put(f, "file", "x");
    snprintf(path, sizeof path, "%s/file/state", f->dir);
    assert_int_equal(storage_dir_open(path, &s, &why), YK_INVAL);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(storage_dir_open("", &s, &why), YK_INVAL);
    assert_int_equal(storage_dir_open("/proc/no-such-place", &s, &why), YK_NOTFOUND);
}

/* A full disk, by the limit on file size: the old content stays and no temporary is left. */
static void test_no_space(void **state)
{
    struct fixture *f = *state;
    put(f, "k", "old");
    struct rlimit was, small;
    getrlimit(RLIMIT_FSIZE, &was);
    small = was;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    char *big = yk_xalloc(100000);
    struct yk_diag why = {{0}};
    yk_err err = f->s->ops->put(f->s, "k", big, 100000, &why);
    setrlimit(RLIMIT_FSIZE, &was);
    free(big);
    assert_int_equal(err, YK_NOSPC);
    assert_non_null(strstr(why.text, f->dir));
    expect(f, "k", "old");
    DIR *d = opendir(f->dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n++;
    closedir(d);
    assert_int_equal(n, 3); /* ".", "..", "k" */
}

static void test_no_links_followed(void **state)
{
    struct fixture *f = *state;
    char path[128];
    struct storage_map m;
    snprintf(path, sizeof path, "%s/link", f->dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_not_equal(f->s->ops->map(f->s, "link", &m, NULL), YK_OK);
}

#define BOTH(fn)                                    \
    {#fn " (dir)", fn, setup_dir, teardown, NULL},  \
    {                                               \
#fn " (mem)", fn, setup_mem, teardown, NULL \
    }
#define DIR_ONLY(fn)                       \
    {                                      \
#fn, fn, setup_dir, teardown, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_put_map_remove),
        BOTH(test_view_outlives_key),
        BOTH(test_bad_keys),
        BOTH(test_list),
        DIR_ONLY(test_survives_reopening),
        DIR_ONLY(test_makes_folders),
        DIR_ONLY(test_no_space),
        DIR_ONLY(test_no_links_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
