/* The options of a training as JSON: defaults, what is refused, and that writing and reading give the same. */
#include "common/train_config.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>

static yk_err read_text(const char *text, struct train_config *c, struct yk_diag *why)
{
    struct json *doc = NULL;
    assert_int_equal(json_parse(text, strlen(text), &doc, why), YK_OK);
    yk_err err = train_config_read(doc, c, why);
    json_free(doc);
    return err;
}

static void test_defaults(void **state)
{
    (void)state;
    struct train_config c;
    assert_int_equal(train_config_read(NULL, &c, NULL), YK_OK);
    assert_true(c.epochs == 1 && c.optimizer == TRAIN_SGD && c.lr == 0.05 && c.momentum == 0.9 && c.weight_decay == 0);
    assert_true(c.loss == GRAD_CROSS_ENTROPY && c.bn == TRAIN_BN_TRAIN && !c.augment && c.n_freeze == 0);
    train_config_fini(&c);
    struct yk_diag why;
    assert_int_equal(read_text("{\"optimizer\": \"adamw\"}", &c, &why), YK_OK);
    assert_true(c.lr == 0.001 && c.weight_decay == 0.01);
    train_config_fini(&c);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char text[] =
        "{\"epochs\": 7, \"seed\": 9007199254740993, \"optimizer\": \"adamw\", \"lr\": 0.1, \"beta2\": 0.95, "
        "\"schedule\": \"cosine\", \"warmup\": 5, \"clip_norm\": 2.5, \"loss\": \"mse\", \"loss_output\": \"y\", "
        "\"bn\": \"frozen\", \"recompute\": true, \"val\": 0.25, \"augment\": \"flip\", \"freeze\": [\"conv*\", "
        "\"b\"]}";
    struct train_config c, d;
    struct yk_diag why;
    struct yk_buf first = {0}, second = {0};
    struct json_out o;
    assert_int_equal(read_text(text, &c, &why), YK_OK);
    json_out_init(&o, &first, 0);
    train_config_write(&c, &o);
    yk_buf_add(&first, "", 1);
    assert_int_equal(read_text((char *)first.data, &d, &why), YK_OK);
    json_out_init(&o, &second, 0);
    train_config_write(&d, &o);
    yk_buf_add(&second, "", 1);
    assert_string_equal((char *)first.data, (char *)second.data);
    assert_true(d.seed == 9007199254740993 && d.schedule == TRAIN_COSINE && d.n_freeze == 2 && d.recompute);
    assert_string_equal(d.freeze[1], "b");
    struct grad_options g;
    train_config_grad(&d, &g);
    assert_true(g.loss == GRAD_MSE && g.bn_frozen && g.recompute && g.n_freeze == 2 && strcmp(g.output, "y") == 0);
    yk_buf_free(&first);
    yk_buf_free(&second);
    train_config_fini(&c);
    train_config_fini(&d);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {{"{\"epoch\": 1}", "epoch"}, {"{\"epochs\": 0}", "epochs"}, {"{\"epochs\": \"a\"}", "epochs"},
        {"{\"lr\": -1}", "lr"}, {"{\"augment\": \"turn\"}", "known: random"},
        {"{\"optimizer\": \"adam\"}", "sgd|adamw"}, {"{\"loss\": \"hinge\"}", "cross-entropy"},
        {"{\"momentum\": 1}", "momentum"}, {"{\"momentum\": 0, \"nesterov\": true}", "nesterov"},
        {"{\"loss\": \"mse\", \"label_smoothing\": 0.1}", "label_smoothing"}, {"{\"val\": 0.95}", "val"},
        {"{\"optimizer\": \"sg\"}", "sgd|adamw"}, {"{\"beta2\": 1}", "beta2"},
        {"{\"schedule\": \"cosine\", \"schedule_floor\": 1}", "above --lr=0.05"},
        {"{\"schedule\": \"step\", \"schedule_epochs\": 0}", "schedule_epochs"},
        {"{\"schedule\": \"step\", \"schedule_gamma\": 0}", "schedule_gamma"}, {"{\"freeze\": \"x\"}", "freeze"},
        {"{\"freeze\": [1]}", "freeze[0]"}, {"[]", "object"},
        /* Who typed a flag is told of the flag. */
        {"{\"loss\": \"mse\", \"label_smoothing\": 0.1}", "--label-smoothing=0.1"},
        {"{\"label_smoothing\": 1}", "--label-smoothing=1"}, {"{\"momentum\": 0, \"nesterov\": true}", "--momentum"},
        {"{\"schedule\": \"cosine\", \"schedule_floor\": 1}", "--schedule=cosine:1"},
        {"{\"schedule\": \"step\", \"schedule_epochs\": 0}", "--schedule=step:EPOCHS:FACTOR"},
        {"{\"loss\": \"mse\", \"ignore_index\": 3}", "--ignore-index=3"}};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct train_config c;
        struct yk_diag why = {{0}};
        assert_int_equal(read_text(bad[i].text, &c, &why), YK_INVAL);
        if (!strstr(why.text, bad[i].says))
            fail_msg("%s: %s", bad[i].text, why.text);
        train_config_fini(&c);
    }
}

/* The words of the table are those of grad.h, in its order. */
static void test_losses(void **state)
{
    (void)state;
    char text[64];
    for (int i = 0; i < GRAD_LOSS_COUNT; i++) {
        struct train_config c;
        snprintf(text, sizeof text, "{\"loss\": \"%s\"}", grad_loss_name((enum grad_loss)i));
        assert_int_equal(read_text(text, &c, NULL), YK_OK);
        assert_int_equal(c.loss, i);
        train_config_fini(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_defaults), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_losses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
