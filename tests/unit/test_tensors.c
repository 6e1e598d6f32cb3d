/* Which file belongs to which input or output, and the errors that say what is wrong. */
#include "scheduler/cli/tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const one[] = {"x"};
static const char *const three[] = {"a", "a=b", "state.0/h"};

#define GIVEN(...)                                                                       \
    (struct conf_strs)                                                                   \
    {                                                                                    \
        (char *[]){__VA_ARGS__}, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)) \
    }

static void inputs_pair(void **state)
{
    (void)state;
    const char *paths[3];
    struct yk_diag why = {""};
    assert_int_equal(tensors_inputs(&GIVEN("x.npy"), one, 1, paths, &why), YK_OK);
    assert_string_equal(paths[0], "x.npy");
    assert_int_equal(tensors_inputs(&GIVEN("x=dir/y=1.npy"), one, 1, paths, &why), YK_OK);
    assert_string_equal(paths[0], "dir/y=1.npy");
    assert_int_equal(tensors_inputs(&GIVEN("./odd=1.npy"), one, 1, paths, &why), YK_OK);
    assert_string_equal(paths[0], "./odd=1.npy");
    assert_int_equal(tensors_inputs(&GIVEN("state.0/h=h.npy", "a=b=2.npy", "a=1.npy"), three, 3, paths, &why), YK_OK);
    assert_string_equal(paths[0], "1.npy");
    assert_string_equal(paths[1], "2.npy");
    assert_string_equal(paths[2], "h.npy");
}

static void bad_inputs(void **state)
{
    (void)state;
    const char *paths[3];
    struct yk_diag why = {""};
    struct conf_strs none = {NULL, 0};
    assert_int_equal(tensors_inputs(&none, one, 1, paths, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "input 'x' is missing: give --input=x.npy"));
    assert_int_equal(tensors_inputs(&GIVEN("a=1.npy"), three, 3, paths, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "input 'a=b' is missing: give --input=a=b=x.npy"));
    assert_int_equal(tensors_inputs(&GIVEN("no=1.npy"), three, 3, paths, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "no input 'no'; it has 'a', 'a=b', 'state.0/h'"));
    assert_int_equal(tensors_inputs(&GIVEN("no=1.npy"), one, 1, paths, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "no input 'no'; it has 'x'"));
    assert_int_equal(tensors_inputs(&GIVEN("1.npy"), three, 3, paths, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "has 3 inputs"));
    assert_int_equal(tensors_inputs(&GIVEN("x=1.npy", "2.npy"), one, 1, paths, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "given twice: 1.npy and 2.npy"));
    assert_int_equal(tensors_inputs(&GIVEN("x="), one, 1, paths, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "no file is named"));
}

static void outputs_pair(void **state)
{
    (void)state;
    static const char *const odd[] = {"out/1", "out:1", "plain", ""};
    char folder[] = "/tmp/yoke-tensors-XXXXXX", *paths[4], want[64], made[64];
    struct yk_diag why = {""};
    struct conf_strs none = {NULL, 0};
    struct stat st;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(tensors_outputs(&none, odd, 4, paths, &why), YK_OK);
    assert_null(paths[0]);
    assert_int_equal(tensors_outputs(&GIVEN("plain=y.npy"), odd, 4, paths, &why), YK_OK);
    assert_null(paths[0]);
    assert_string_equal(paths[2], "y.npy");
    free(paths[2]);
    assert_int_equal(tensors_outputs(&GIVEN("y.npy"), odd, 4, paths, &why), YK_INVAL);
    assert_null(paths[2]);

    snprintf(made, sizeof made, "%s/new/", folder);
    const char *places[] = {folder, made};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tensors_outputs(&GIVEN((char *)(uintptr_t)places[i]), odd, 4, paths, &why), YK_OK);
        const char *names[] = {"out_1.npy", "out_1-1.npy", "plain.npy", "output.npy"};
        for (int k = 0; k < 4; k++) {
            snprintf(want, sizeof want, "%s%s%s", places[i], i ? "" : "/", names[k]);
            assert_string_equal(paths[k], want);
            free(paths[k]);
        }
    }
    assert_int_equal(stat(made, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    rmdir(made);
    rmdir(folder);
}

static void files(void **state)
{
    (void)state;
    char folder[] = "/tmp/yoke-tensors-XXXXXX", path[64];
    struct yk_diag why = {""};
    struct shape s = {DT_F32, 2, {2, 3}}, back;
    const float data[6] = {1, 2, 3, 4, 5, 6};
    void *got = NULL;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x.npy", folder);
    assert_int_equal(tensors_read(path, &back, &got, &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(tensors_write(path, &s, data, &why), YK_OK);
    assert_int_equal(tensors_read(path, &back, &got, &why), YK_OK);
    assert_true(shape_equal(&s, &back));
    assert_memory_equal(got, data, sizeof data);
    free(got);
    got = NULL;
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(tensors_read(path, &back, &got, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, path));
    assert_null(got);
    assert_int_equal(tensors_read(folder, &back, &got, &why), YK_INVAL);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(inputs_pair), cmocka_unit_test(bad_inputs),
        cmocka_unit_test(outputs_pair), cmocka_unit_test(files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
