/* The node tests that come with ONNX (Debian's libonnx-testdata) through the engine of `yoke local check`. A test whose
 * op is not supported is skipped; the number of passes has a floor, so that a loss is seen. ref and fake run the graphs
 * as they are written, auto runs them after the passes of inference; each once with the contents of small inputs known
 * before the run, and once without, when many nodes run by their actual inputs. YOKE_NODE_VERBOSE=1 lists every test.
 */
#include "scheduler/cli/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOT "/usr/share/libonnx-testdata/data/"

/* What of each folder passes at least. The folders beside `node` hold models of opsets 6 to 12 with outputs from
 * PyTorch: they show that the importer's upgrades keep what a model computes. */
static const struct {
    const char *name;
    int floor;
} folders[] = {{"node", 901}, {"pytorch-operator", 35}, {"pytorch-converted", 82}, {"simple", 15}};

/* Published data that is wrong; ONNX Runtime and PyTorch do not give it either. They are failures like any other for
 * the command, and expected here. */
static const char *const wrong[][2] = {
    {"test_maxunpool_export_with_output_shape", "its indices count in a smaller tensor than the output"},
    {"test_resize_downsample_scales_linear_align_corners", "it aligns the corners of an axis of 2.4 elements"},
    {"test_resize_downsample_scales_cubic_align_corners", "it aligns the corners of an axis of 2.4 elements"},
    {"test_adam_multiple", "it was computed with epsilon 0.01, which the model does not have"},
    {"test_cast_FLOAT_to_BFLOAT16", "its bfloat16 are cut off, not rounded"},
};

static void on_test(void *arg, const char *test, enum check_verdict verdict, const char *reason)
{
    int *unexpected = arg;
    bool known = false;
    for (size_t i = 0; i < YK_COUNT(wrong); i++)
        known = known || strcmp(test, wrong[i][0]) == 0;
    *unexpected += verdict == CHECK_FAILED && !known;
    if (verdict == CHECK_FAILED || getenv("YOKE_NODE_VERBOSE"))
        print_message("%s %s: %s\n", check_verdicts[verdict], test, reason);
}

/* Models of control flow and functions with PyTorch's outputs (tests/golden/make_dynamic.py). */
#define DYNAMIC YOKE_SOURCE_DIR "/tests/golden/dynamic"

static void all_of(const char *spec, bool passes, bool known, const char *folder, int floor)
{
    struct pool *pool;
    struct backends b;
    int unexpected = 0;
    struct check check = {.backends = &b, .passes = passes, .known = known, .on = on_test, .arg = &unexpected};
    struct yk_diag why = {""};
    const char *slash = strrchr(folder, '/'), *name = slash ? slash + 1 : folder;
    if (access(folder, R_OK) != 0) {
        print_message("no ONNX test data at %s (package libonnx-testdata): skipped\n", folder);
        skip();
    }
    assert_int_equal(pool_open(2, &pool, NULL), YK_OK);
    assert_int_equal(backends_open(spec, pool, &b, NULL), YK_OK);
    if (check_folder(&check, folder, &why))
        fail_msg("%s", why.text);
    backends_close(&b);
    pool_close(pool);
    print_message("%s, %s%s: %d passed, %d failed, %d skipped\n", spec, name, known ? ", known inputs" : "",
        check.count[CHECK_PASSED], check.count[CHECK_FAILED], check.count[CHECK_SKIPPED]);
    assert_int_equal(unexpected, 0);
    assert_true(check.count[CHECK_PASSED] >= floor);
}

static void all_nodes(const char *spec, bool passes)
{
    for (size_t i = 0; i < YK_COUNT(folders); i++)
        for (int known = 0; known < 2; known++) {
            char folder[256];
            snprintf(folder, sizeof(folder), ROOT "%s", folders[i].name);
            all_of(spec, passes, known, folder, folders[i].floor);
        }
    for (int known = 0; known < 2; known++)
        all_of(spec, passes, known, DYNAMIC, 7);
}

static void with_ref(void **state)
{
    (void)state;
    all_nodes("ref", false);
}

static void with_all(void **state)
{
    (void)state;
    all_nodes("auto", true);
}

static void with_fake(void **state)
{
    (void)state;
    all_nodes("fake", false);
}

static void bad_folders(void **state)
{
    (void)state;
    struct backends b = {0};
    struct check check = {.backends = &b, .on = on_test};
    struct yk_diag why = {""};
    char empty[] = "/tmp/yoke-check-XXXXXX";
    assert_int_equal(check_folder(&check, "/nowhere/at/all", &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "/nowhere/at/all"));
    assert_non_null(mkdtemp(empty));
    assert_int_equal(check_folder(&check, empty, &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "holds no tests"));
    rmdir(empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(with_ref), cmocka_unit_test(with_all),
        cmocka_unit_test(with_fake), cmocka_unit_test(bad_folders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
