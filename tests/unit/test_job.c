/* The table of job states: every state ends; and the map of what is done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/job.h"

#define STATES (JOB_CANCELED + 1)

/* Every state that has not ended has a deadline, and following the ways out leads to an end; a wait for lost agents is
 * the one way back, and has a limit of its own. */
static void every_state_ends(void **state)
{
    (void)state;
    for (int s = 0; s < STATES; s++) {
        enum job_state at = (enum job_state)s;
        assert_true(job_state_name(at)[0] != 0);
        assert_true(job_state_what(at)[0] != 0);
        if (job_ended(at)) {
            assert_int_equal(job_state_deadline_ms(at), 0);
            assert_int_equal(job_state_out(at), at);
            continue;
        }
        int steps = 0;
        while (!job_ended(at)) {
            assert_true(job_state_deadline_ms(at) > 0);
            assert_true(job_state_deadline_ms(at) <= 10 * 60 * 1000);
            at = job_state_out(at);
            assert_true(++steps <= STATES);
        }
        assert_int_equal(at, JOB_FAILED);
    }
}

static void names_lead_back(void **state)
{
    (void)state;
    for (int s = 0; s < STATES; s++) {
        enum job_state found;
        assert_true(job_state_find(job_state_name((enum job_state)s), &found));
        assert_int_equal(found, s);
    }
    enum job_state found;
    assert_false(job_state_find("asleep", &found));
    assert_false(job_state_find("", &found));
}

static struct job *parse(const char *text)
{
    struct job *j = NULL;
    struct yk_diag why = {0};
    if (job_parse(text, strlen(text), &j, &why))
        fail_msg("%s", why.text);
    return j;
}

static void requests(void **state)
{
    (void)state;
    struct job *j =
        parse("{\"kind\":\"batch\",\"model\":\"m\",\"data\":{\"name\":\"d\",\"split\":\"train\",\"mean\":[0.5],"
              "\"std\":[0.25]},\"source\":\"pc\",\"batch\":128,\"microbatch\":8,\"objective\":\"latency\","
              "\"deadline_ms\":250,\"codec\":[\"fp16\"],\"pin\":[\"last\"],\"outputs\":true}");
    assert_string_equal(j->data, "d");
    assert_int_equal(j->n_inputs, 0);
    assert_string_equal(j->split, "train");
    assert_int_equal(j->n_mean, 1);
    assert_true(j->mean[0] == 0.5 && j->std[0] == 0.25);
    assert_int_equal(j->batch, 128);
    assert_int_equal(j->microbatch, 8);
    assert_int_equal(j->objective, SOLVE_LATENCY);
    assert_int_equal(j->deadline_ms, 250);
    assert_true(j->codec_allowed[CODEC_FP32] && j->codec_allowed[CODEC_FP16] && !j->codec_allowed[CODEC_INT8]);
    assert_true(!j->pin_first && j->pin_last && j->want_outputs && !j->want_accuracy);
    job_free(j);
    j = parse("{\"kind\":\"infer\",\"model\":\"m\"}"); /* a plan request */
    assert_int_equal(j->objective, SOLVE_LATENCY);
    assert_null(j->data);
    assert_int_equal(j->microbatch, 0);
    job_free(j);
    j = parse("{\"kind\":\"batch\",\"model\":\"m\"}");
    assert_int_equal(j->objective, SOLVE_THROUGHPUT);
    job_free(j);
    job_free(NULL);
}

static void bad_requests(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "1", "{}", "{\"kind\":\"batch\"}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"data\":7}", "{\"kind\":\"batch\",\"model\":\"m\",\"data\":{}}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"data\":{\"name\":\"d\",\"blob\":\"b\"},\"source\":\"pc\"}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"data\":{\"name\":\"d\",\"mean\":\"x\"},\"source\":\"pc\"}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"data\":{\"name\":\"d\",\"mean\":[null]},\"source\":\"pc\"}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"data\":{\"name\":\"d\",\"preprocess\":{\"crop\":0}},\"source\":\"pc\"}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"data\":{\"name\":\"d\",\"colour\":1},\"source\":\"pc\"}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"batch\":0}", "{\"kind\":\"batch\",\"model\":\"m\",\"batch\":-5}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"batch\":\"many\"}", "{\"kind\":\"batch\",\"model\":\"m\",\"pin\":7}",
        "{\"kind\":\"batch\",\"model\":\"m\",\"codec\":[7]}", "{\"kind\":\"batch\",\"model\":\"m\",\"outputs\":1}"};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct job *j = NULL;
        struct yk_diag why = {0};
        if (!job_parse(bad[i], strlen(bad[i]), &j, &why))
            fail_msg("taken: %s", bad[i]);
        assert_null(j);
        assert_true(why.text[0] != 0);
    }
}

#define ONE_STAGE(batch, microbatch)                                                                                \
    "\"plan\":{\"model\":\"m\",\"graph\":{\"use\":\"infer\",\"hash\":"                                              \
    "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}," batch "\"microbatch\":" microbatch     \
    ",\"pipelines\":[{\"share\":1,\"depth\":1,\"order\":\"forward-first\",\"stages\":[{\"agent\":\"pc\",\"nodes\":" \
    "[[0,0]]}]}],\"cuts\":[]}"

/* A batch is cut into microbatches, so it is at least one. */
static void splits(void **state)
{
    (void)state;
    static const struct {
        const char *request;
        int64_t batch; /* that it gets; 0: it is refused */
    } all[] = {{"{\"kind\":\"batch\",\"model\":\"m\",\"batch\":8,\"microbatch\":8}", 8},
        {"{\"kind\":\"batch\",\"model\":\"m\",\"batch\":8,\"microbatch\":9}", 0},
        {"{\"kind\":\"infer\",\"model\":\"m\",\"batch\":8,\"microbatch\":9}", 0},
        {"{\"kind\":\"batch\",\"model\":\"m\",\"microbatch\":9}", 9},
        {"{\"kind\":\"train\",\"model\":\"m\",\"microbatch\":64}", 64},
        {"{\"kind\":\"train\",\"model\":\"m\",\"microbatch\":65}", 0},
        {"{\"kind\":\"train\",\"model\":\"m\",\"batch\":4,\"microbatch\":5}", 0},
        {"{\"kind\":\"batch\",\"model\":\"m\"," ONE_STAGE("\"batch\":16,", "8") "}", 16},
        {"{\"kind\":\"batch\",\"model\":\"m\",\"batch\":32," ONE_STAGE("\"batch\":16,", "8") "}", 32},
        {"{\"kind\":\"batch\",\"model\":\"m\",\"batch\":4," ONE_STAGE("\"batch\":16,", "8") "}", 0},
        {"{\"kind\":\"batch\",\"model\":\"m\"," ONE_STAGE("", "8") "}", 8}};
    for (size_t i = 0; i < YK_COUNT(all); i++) {
        struct job *j = NULL;
        struct yk_diag why = {0};
        yk_err err = job_parse(all[i].request, strlen(all[i].request), &j, &why);
        if (err != (all[i].batch ? YK_OK : YK_INVAL) || (j && j->batch != all[i].batch))
            fail_msg("%s: %s %s", all[i].request, yk_err_name(err), why.text);
        assert_true(all[i].batch || (strstr(why.text, "--microbatch=") && strstr(why.text, "give --batch=")));
        job_free(j);
    }
}

static void map_of_what_is_done(void **state)
{
    (void)state;
    for (int64_t microbatch = 1; microbatch < 10; microbatch++)
        for (int64_t samples = 0; samples < 70; samples++) {
            struct job j = {.microbatch = microbatch};
            assert_int_equal(job_set_samples(&j, samples, NULL), YK_OK);
            assert_int_equal(j.microbatches, (samples + microbatch - 1) / microbatch);
            for (int64_t i = 0; i < j.microbatches; i++) {
                assert_false(job_map_get(&j, i));
                job_map_set(&j, i);
                assert_true(job_map_get(&j, i));
            }
            free(j.done_map);
        }
    struct job j = {.microbatch = 1};
    struct yk_diag why = {0};
    assert_int_equal(job_set_samples(&j, INT64_MAX - 1, &why), YK_LIMIT);
    assert_int_equal(job_set_samples(&j, -1, &why), YK_LIMIT);
    assert_null(j.done_map);
    /* The data set is another one today. */
    assert_int_equal(job_set_samples(&j, 10, NULL), YK_OK);
    assert_int_equal(job_set_samples(&j, 10, NULL), YK_OK);
    assert_int_equal(job_set_samples(&j, 11, &why), YK_STATE);
    assert_non_null(strstr(why.text, "11"));
    free(j.done_map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_state_ends),
        cmocka_unit_test(names_lead_back),
        cmocka_unit_test(requests),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(splits),
        cmocka_unit_test(map_of_what_is_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
